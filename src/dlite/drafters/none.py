"""No drafts: the decoding loop then is plain decoding, one target row a round."""

from __future__ import annotations

from collections.abc import Sequence

from dlite.drafters.base import About, Chooser
from dlite.types import Proposal, View


class NoDrafter:
    """Proposes nothing."""

    name = "none"
    taps: tuple[int, ...] = ()
    max_drafts = 0
    about = About(context="none", head="-", paper="-")

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """An empty proposal: tokens [B,0]."""
        empty = view.anchor.new_zeros(len(counts), 0)
        return Proposal(empty, view.anchor.new_zeros(len(counts)))

    def new_memory(self, rows: int) -> None:
        """Nothing to remember."""

    def state_bytes(self, context: int) -> int:
        """Nothing is kept."""
        return 0
