"""How the drafts of one source fared, recent rounds weighing most: what stands in for a confidence, or corrects one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

CHANCE = 0.5  # prior: that a draft is kept if those before it are
WEIGHT = 4.0  # drafts that a prior weighs as much as
FADE = math.exp(-1 / 16)  # what a round leaves of what was known before it


@dataclass
class Rates:
    """Counts by position. ``prior`` are the rates of all requests, for those of one.

    ``tried`` drafts that verification reached, ``kept`` how many of them stayed; ``promised`` the sum of the stated
    confidence in drafts reached, ``held`` how many of these stayed.
    """

    prior: Rates | None = None
    tried: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    promised: float = 0.0
    held: float = 0.0

    def note(self, proposed: int, accepted: int, confidence: Sequence[float] | None) -> None:
        """Take in a round, with the confidence stated in its drafts."""
        reached = min(proposed, accepted + 1)
        missing = [0.0] * max(0, reached - len(self.tried))
        self.tried = [FADE * n + (i < reached) for i, n in enumerate(self.tried + missing)]
        self.kept = [FADE * n + (i < accepted) for i, n in enumerate(self.kept + missing)]
        self.promised *= FADE
        self.held *= FADE
        if confidence is not None:
            self.promised += sum(confidence[:reached])
            self.held += accepted

    def chance(self, i: int) -> float:
        """That draft i (from 0) is kept if those before it are: the running share, drawn towards the prior."""
        prior = self.prior.chance(i) if self.prior else CHANCE
        tried, kept = (self.tried[i], self.kept[i]) if i < len(self.tried) else (0.0, 0.0)
        return (kept + WEIGHT * prior) / (tried + WEIGHT)

    def trust(self) -> float:
        """What a stated confidence is to be multiplied with: drafts that stayed over drafts that should have."""
        prior = self.prior.trust() if self.prior else 1.0
        return (self.held + WEIGHT * prior) / (self.promised + WEIGHT)
