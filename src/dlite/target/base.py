"""What the engine and the trainer need of a target, whatever model stands behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from dlite.nn.backbone import BackboneConfig

Rows = Literal["all", "last", "taps"]


@dataclass(frozen=True)
class TargetInfo:
    """Facts about a target.

    ``tokenizer_hash`` ties a drafter to the vocabulary it was trained on; ``layer`` has the sizes of a decoder layer,
    which a drafter copies unless its recipe says otherwise.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    context_length: int
    stop_ids: frozenset[int]
    tokenizer_hash: str
    layer: BackboneConfig


@dataclass(frozen=True)
class TargetOutput:
    """One pass: logits [B,R,V] fp32 and raw taps [B,R,n,D].

    ``rows="last"`` gives both for the last row only; ``rows="taps"`` all taps but the last row's logits.
    """

    logits: Tensor
    taps: Tensor


class Cache(Protocol):
    """Key-value rows of the requests in a batch; row b holds ``lengths[b]`` computed positions."""

    lengths: list[int]

    def reserve(self, length: int) -> None:
        """Make room for ``length`` positions in every row; what was computed stays."""

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""

    def export(self, row: int, length: int) -> Any:
        """The first ``length`` positions of a row, copied out."""

    def restore(self, row: int, saved: Any, length: int) -> None:
        """Put ``length`` exported positions back at the start of a row."""


class Target(Protocol):
    """A model that owns the output."""

    info: TargetInfo
    tokenizer: Any
    device: torch.device
    dtype: torch.dtype

    def new_cache(self, rows: int, length: int) -> Cache:
        """An empty cache for ``rows`` requests of up to ``length`` positions."""

    def forward(self, tokens: Tensor, cache: Any, first: int, taps: tuple[int, ...], rows: Rows) -> TargetOutput:
        """Run tokens [B,R] behind what rows first..first+B-1 of a cache of this target hold.

        ``cache.lengths`` is left to the caller.
        """

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings as the first layer sees them: [...] -> [...,D] fp32."""

    def final_norm(self, tap: Tensor) -> Tensor:
        """The target's final norm, applied to a raw last tap: [...,D] -> [...,D]."""

    def last_tap_logits(self, tap: Tensor, vocab: Tensor | None = None) -> Tensor:
        """Logits from the raw output of the last layer, for all tokens or those in ``vocab``: [...,D] -> [...,V] fp32."""

    def output_weight(self) -> tuple[Tensor, Tensor]:
        """(lm_head [V,D], final norm scale [D]), fp32: what the drafter's head starts from."""
