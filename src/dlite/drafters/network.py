"""What a trainable drafter is to the trainer and to the checkpoint: the training half of the seam in ``base``.

A network holds its training ``forward`` and its decoding ``propose`` side by side over the same parts. It borrows the
target's embedding and output matrix and never saves or trains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import Chooser, Memory
from dlite.errors import ConfigError
from dlite.nn.backbone import BackboneConfig
from dlite.nn.layout import default_taps
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True)
class History:
    """Positions before the pivots, shared by the blocks.

    taps [P,n,D] and following [P], the token after each; per block the rows that come before its pivot, their distance
    to the anchor and whether they exist: rows, distance, real [N,W]. The pivot's own row is pivot [N].
    """

    taps: Tensor
    following: Tensor
    rows: Tensor
    distance: Tensor
    real: Tensor
    pivot: Tensor


@dataclass(frozen=True)
class BlockInput:
    """What N training blocks read.

    taps [N,n,D]   anchor [N]   before [N]   previous [N,K] the token before each draft, the anchor first (K may be
    smaller than the drafter's own); history for networks that look behind the pivot.
    """

    taps: Tensor
    anchor: Tensor
    before: Tensor
    previous: Tensor
    history: History | None = None


@dataclass(frozen=True)
class DraftOutput:
    """Teacher-forced output: logits [N,K,V'] over the draft vocabulary.

    confidence [N,K] logits of the chance that a draft is accepted; candidates: rows of the draft vocabulary [N,K,C] and
    their scores [N,K,C], for heads that choose among a few.
    """

    logits: Tensor
    confidence: Tensor | None = None
    candidates: tuple[Tensor, Tensor] | None = None


class Network(Protocol):
    """A drafter with weights, an ``nn.Module`` built as ``Class(config)``.

    ``config`` is a frozen dataclass ``Config`` of plain values with ``backbone``, ``vocab_size``, ``K``, ``taps``,
    ``num_target_layers`` and ``draft_vocab``; ``history`` is how many positions before the pivot its training blocks
    must bring.
    """

    name: str
    Config: type
    taps: tuple[int, ...]
    max_drafts: int
    config: Any
    history: int
    vocab: DraftVocab

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> Any:
        """The config of a network of a recipe's sizes for this target. Errors: ``ConfigError``."""

    def attach(self, target: Target) -> Self:
        """Borrow the target's matrices."""

    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights."""

    def forward(self, block: BlockInput) -> DraftOutput:
        """Teacher-forced output, in the model's dtype."""

    def freeze(self) -> Self:
        """Ready for decoding: no gradients, and on a CPU the fast frozen layout."""

    def new_memory(self, rows: int) -> Memory | None:
        """See ``Drafter``."""

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """See ``Drafter``."""

    def state_bytes(self, context: int) -> int:
        """See ``Drafter``."""


class DraftVocab(nn.Module):
    """The tokens a head can say: all V, or some with maps both ways. Holds no weights.

    ``ids`` [V'] token id of each row and ``rows`` [V] row of each token, V' for tokens outside; both None for all.
    """

    ids: Tensor | None
    rows: Tensor | None

    def __init__(self, vocab_size: int, tokens: Sequence[int] | None) -> None:
        super().__init__()
        self.tokens = None if tokens is None else tuple(tokens)
        self.size = vocab_size if tokens is None else len(tokens)
        self.vocab_size = vocab_size
        self.register_buffer("ids", None, persistent=False)
        self.register_buffer("rows", None, persistent=False)
        if tokens is not None:
            with torch.device("cpu"):  # real values even where weights are made on the meta device
                self.ids = torch.tensor(self.tokens)
                self.rows = torch.full((vocab_size,), self.size)
                self.rows[self.ids] = torch.arange(self.size)

    def to_rows(self, tokens: Tensor) -> Tensor:
        """Rows of token ids; tokens outside share row V'."""
        return tokens if self.rows is None else self.rows[tokens]

    def select(self, matrix: Tensor) -> Tensor:
        """The rows of a [V,...] matrix that belong to the vocabulary: [V',...]."""
        return matrix if self.ids is None else matrix[self.ids.to(matrix.device)]

    @property
    def previous_size(self) -> int:
        """Rows of a table of previous tokens: V', and one more that stands for every token outside."""
        return self.size + (self.tokens is not None)

    def previous_words(self, target: Target) -> Tensor:
        """The target's embeddings of those rows [V' or V'+1,D], their mean over all tokens for the tokens outside."""
        words = target.embed(torch.arange(self.vocab_size))
        return words if self.tokens is None else torch.cat([self.select(words), words.mean(0, keepdim=True)])


class NoOptions(BaseModel):
    """A drafter whose settings are all part of ``DrafterRecipe``."""

    model_config = ConfigDict(extra="forbid")


def options(recipe: DrafterRecipe, kind: type[Options]) -> Options:
    """The recipe's ``[drafter.options]`` as this drafter's own settings, strictly. Errors: ``ConfigError``."""
    try:
        return kind.model_validate(recipe.options)
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(kind.model_fields) or "none"
        raise ConfigError(
            f"drafter.options.{'.'.join(map(str, first['loc']))} does not fit the drafter {recipe.kind!r}: {first['msg']}. "
            f"Known options: {known}."
        ) from None


def drafter_backbone(recipe: DrafterRecipe, info: TargetInfo) -> BackboneConfig:
    """The target's own width and head layout unless the recipe says otherwise."""
    return replace(
        info.layer,
        num_layers=recipe.num_layers,
        num_kv_heads=recipe.num_kv_heads or info.layer.num_kv_heads,
        intermediate_size=recipe.intermediate_size or info.layer.intermediate_size,
    )


def drafter_taps(recipe: DrafterRecipe, info: TargetInfo) -> tuple[int, ...]:
    """The recipe's taps, or the published even choice of ``num_taps`` layers."""
    return recipe.taps or default_taps(info.num_layers, recipe.num_taps)


@torch.no_grad()
def start_linear(network: nn.Module, generator: torch.Generator) -> None:
    """Small normal matrices and zero biases in every linear layer."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, 0.02, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
