"""What drafters borrow of the target: its embedding, its last hidden state and its output matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn.functional import linear

from dlite.drafters.network import DraftVocab
from dlite.nn.cpu import PackedLinear, can_pack
from dlite.target.base import Target

LastTap = Literal["raw", "normed"]


class Borrowed:
    """A target's matrices, over the draft vocabulary. No module: nothing here is saved, moved or trained."""

    def __init__(self, vocab: DraftVocab) -> None:
        self.vocab = vocab
        self._target: Target | None = None
        self._head: Callable[[Tensor], Tensor] | None = None
        self._frozen = False

    def attach(self, target: Target) -> None:
        """Borrow from this target."""
        self._target, self._head = target, None

    def freeze(self) -> None:
        """Ready for decoding: the output matrix may be packed for it."""
        self._frozen, self._head = True, None

    @property
    def target(self) -> Target:
        """The target borrowed from."""
        if self._target is None:
            raise RuntimeError("this drafter was not attached to its target")
        return self._target

    def last_hidden(self, taps: Tensor, last_tap: LastTap) -> Tensor:
        """The last hidden state, before or after the target's final norm: taps [...,n,D] -> [...,D]."""
        hidden = taps[..., -1, :]
        return self.target.final_norm(hidden) if last_tap == "normed" else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's own output matrix: [...,D] -> [...,V']."""
        if self._head is None:
            weight = self.vocab.select(self.target.output_weight()[0]).to(hidden)
            pack = self._frozen and can_pack(weight)
            self._head = PackedLinear(weight) if pack else partial(linear, weight=weight)
        return self._head(hidden)
