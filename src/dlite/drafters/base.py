"""What a drafter is to the engine: it looks at a ``View`` and proposes; what it must remember, it keeps per request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from dlite.types import Proposal, View


@dataclass(frozen=True)
class About:
    """A drafter in a line of ``dlite drafters``, as its class attribute ``about``.

    ``context``: what it reads besides the anchor: no state of the target at all, that at the pivot, those of a window or
    of all positions, or the tokens of the text. ``state``: what it keeps for a request, in words, for a class that
    cannot count the bytes without being given a model.
    """

    context: Literal["none", "pivot", "window", "all", "text"]
    head: str
    paper: str
    state: str = ""


class Picker(Protocol):
    """Turns draft logits into draft tokens."""

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """Tokens of draft slot ``slot``: logits [B,V'] over all tokens or those in ``ids`` [V'] -> token ids [B]."""


class Chooser(Picker, Protocol):
    """A picker under each request's sampling settings, that remembers q."""

    def select(self, index: Sequence[int]) -> Chooser:
        """A chooser for the requests at these places of the view; what it remembers, this one knows too."""


class Memory(Protocol):
    """What a drafter remembers of the requests in a batch; row b is that of row b of the target's cache.

    It must be a function of the tokens and taps of the positions observed, so that cold, restored and resumed requests
    draft alike; what one round hands to the next (dflow) is lost with a preemption. ``overlap`` says how many positions
    before the end of a restored prefix it must see again.
    """

    overlap: int

    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """The target has computed tokens [B,R] and taps [B,R,n,D] behind what rows first..first+B-1 had seen.

        The first ``kept[b]`` positions stand; the others were rejected.
        """

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row. A request that is over hands in its tokens, of which the first ``prompt`` were given."""

    def move(self, source: int, row: int) -> None:
        """Copy one row over another. The first is cleared before it is used again, so it may be handed over."""

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""

    def export(self, row: int, length: int) -> Any:
        """What ``restore`` needs for the first ``length`` positions of a row."""

    def restore(self, row: int, saved: Any, length: int) -> None:
        """Make a row what it was after ``length`` positions; with an ``overlap``, that many before a shared end."""


class Drafter(Protocol):
    """Proposes up to ``max_drafts`` tokens a round.

    ``taps`` are the target layers whose pivot states it wants in ``View.taps`` (and, with a memory, those of every
    position); empty for none.
    """

    name: str
    taps: tuple[int, ...]
    max_drafts: int

    def new_memory(self, rows: int) -> Memory | None:
        """An empty memory for a batch of ``rows`` requests; None for a drafter that forgets."""

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """Drafts for each request of the view, ``counts[b]`` wanted for row b (fewer are allowed)."""

    def state_bytes(self, context: int) -> int:
        """Bytes of draft state held per request between rounds, behind ``context`` tokens."""
