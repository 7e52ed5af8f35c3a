"""What a drafter is to the engine: it looks at a ``View`` and proposes; what it must remember, it keeps per request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from dlite.types import Proposal, View


class Chooser(Protocol):
    """Turns draft logits into draft tokens under each request's sampling settings, and remembers q."""

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """Tokens of draft slot ``slot``: logits [B,V'] over all tokens or those in ``ids`` [V'] -> token ids [B]."""


class Drafter(Protocol):
    """Proposes up to ``max_drafts`` tokens a round.

    ``taps`` are the target layers whose pivot states it wants in ``View.taps``; empty for none.
    """

    name: str
    taps: tuple[int, ...]
    max_drafts: int

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """Drafts for each request of the view, ``counts[b]`` wanted for row b (fewer are allowed)."""

    def state_bytes(self) -> int:
        """Bytes of draft state held per request between rounds."""
