"""How many drafts are worth their rows, round by round, without changing the law of the output.

Draft i is verified if expected tokens a second grow by it (2607.05147): its survival a_i = c_1 ... c_i is the chance
that it counts, a cost curve measured on the way says what its row costs. The number of drafts is a stopping time:
whether draft i is verified depends on c_1 ... c_i, which were known before draft i was sampled, and on rounds that are
over. So every round is exact given the past, and the output is the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from dlite.drafters.base import Drafter
from dlite.engine.costs import Costs
from dlite.engine.rates import FADE, Rates
from dlite.engine.request import Active
from dlite.types import Proposal, Round, Seconds

PATIENCE = 8  # drafting rounds before drafting may be switched off
PROBES = 2  # drafting rounds between one pause and the next
PAUSE, LONGEST_PAUSE = 32, 256  # rounds of the first pause, and of any: each is twice the one before
EXPLORE = 32  # without a confidence, each so-and-so-many-th round takes all its drafts


def depth(survival: Sequence[Sequence[float]], seconds: Callable[[int], float]) -> int:
    """Drafts a request to verify: one more while expected tokens a second grow, up to the first fall.

    survival: a_1 ... a_k of each request in the pass; seconds(i): the round with i drafts a request. A request has as
    many as it drafted, if fewer. What it says of draft i depends on nothing behind a_i.
    """
    most = max(map(len, survival), default=0)
    tokens = float(len(survival))
    speed = tokens / seconds(0)
    for i in range(most):
        tokens += sum(row[i] for row in survival if i < len(row))
        grown = tokens / seconds(i + 1)
        if grown <= speed:
            return i
        speed = grown
    return most


@dataclass(frozen=True)
class Plan:
    """Drafts to ask for [B], and the requests whose drafting is switched off [B]."""

    counts: list[int]
    resting: list[bool]


@dataclass
class Pace:
    """What is known of one request. ``saved``: seconds that its recent drafting rounds took less than plain ones."""

    rates: dict[str, Rates] = field(default_factory=dict)  # by source
    saved: float = 0.0
    rounds: int = 0  # drafting rounds
    judged: int = PATIENCE  # drafting rounds until drafting may next be switched off
    off: int = 0  # rounds left of a pause
    pause: int = PAUSE  # length of the next
    resting: bool = False  # in this round
    made: int = 0  # drafts of this round, before the cut
    confidence: list[float] | None = None  # stated for the drafts of this round


class Control:
    """Decides for the requests of one engine, or of several in turn; what it learns of costs serves all of them.

    Drafting is switched off for a request while it costs more than it gains, and tried again after a pause. Of a
    composed drafter only the model is switched off, its source ``Drafter.rests``: copies, which cost next to nothing,
    go on.
    """

    def __init__(self, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.overall: dict[str, Rates] = {}
        self._rests: str | None = None
        self._confident = False  # the drafter says how sure it is: all drafts are asked for, and cut afterwards

    def plan(self, rows: Sequence[Active], wanted: Sequence[int], drafter: Drafter) -> Plan:
        """Before drafting: how many drafts to ask for, from past rounds alone."""
        self._rests = getattr(drafter, "rests", None)
        composed = self._rests is not None
        paces = [_pace(row) for row in rows]
        for pace in paces:
            pace.resting, pace.off = pace.off > 0, max(0, pace.off - 1)
            pace.made, pace.confidence = 0, None
        counts = [0 if p.resting and not composed else count for p, count in zip(paces, wanted, strict=True)]
        if not composed and not self._confident and any(counts):
            survival = [self._survival(p, "", count) for p, count in zip(paces, counts, strict=True)]
            most = self._depth(rows, survival, lambda i: self.costs.draft(len(rows), "", i))
            counts = [min(count, max(1, most)) for count in counts]
        return Plan(counts, [pace.resting for pace in paces])

    def cut(self, rows: Sequence[Active], proposal: Proposal) -> Proposal:
        """After drafting: the drafts that are verified."""
        counts, sources = proposal.num_tokens.tolist(), proposal.source or [""] * len(rows)
        stated = [None] * len(rows) if proposal.confidence is None else proposal.confidence.tolist()
        longest, survival = max(counts), []
        if not longest:
            return proposal
        for row, count, source, confidence in zip(rows, counts, sources, stated, strict=True):
            pace = _pace(row)
            pace.made = count
            if confidence is not None and count and not any(map(math.isnan, confidence[:count])):
                pace.confidence, self._confident = confidence[:count], True
            survival.append(self._survival(pace, source, count))
        spent = self.costs.draft(len(rows), _joined(sources), longest)
        most = self._depth(rows, survival, lambda i: spent)
        if any(count and _pace(row).confidence is None for row, count in zip(rows, counts, strict=True)):
            most = max(1, most)  # what was made on past rounds' word alone is tried, or nothing would be learned
        return Proposal(
            proposal.tokens[:, :most],
            proposal.num_tokens.clamp(max=most),
            None if proposal.probs is None else proposal.probs[:, :most],
            None if proposal.confidence is None else proposal.confidence[:, :most],
            proposal.source,
        )

    def learn(self, rounds: Sequence[tuple[Active, Round]], drafted: int, seconds: Seconds) -> None:
        """After a round of every request: ``drafted`` is the most drafts that were made for one, before the cut."""
        requests, context = len(rounds), max(r.context for _, r in rounds)
        source, rows = _joined([r.source for _, r in rounds]), max(r.proposed for _, r in rounds)
        self.costs.note_verify(requests, context, rows, seconds.verify + seconds.other)
        if drafted:
            self.costs.note_draft(requests, source, drafted, seconds.draft)
        plain = self.costs.verify(requests, context, 0)
        spent = self.costs.draft(requests, source, drafted) + self.costs.verify(requests, context, rows)
        for row, one in rounds:
            pace = _pace(row)
            for rates in (self._overall(one.source), self._rates(pace, one.source)):
                rates.note(one.proposed, one.accepted, pace.confidence)
            if pace.made and self._rests in (None, one.source):
                _judge(pace, (one.accepted + 1) * plain - spent)

    def _depth(self, rows: Sequence[Active], survival: Sequence[Sequence[float]], draft: Callable[[int], float]) -> int:
        requests, context = len(rows), max(len(row.tokens) for row in rows)
        if not self.costs.verify(requests, context, 0):
            return max(map(len, survival))  # nothing was measured yet
        return depth(survival, lambda i: draft(i) + self.costs.verify(requests, context, i))

    def _survival(self, pace: Pace, source: str, count: int) -> list[float]:
        """a_1 ... a_count: from the stated confidence as far as it has held so far, or from past rounds."""
        rates = self._rates(pace, source)
        if pace.confidence is not None:
            trust = rates.trust()
            chances = [min(1.0, trust * c) for c in pace.confidence]
        elif pace.rounds % EXPLORE == EXPLORE - 1:
            chances = [1.0] * count
        else:
            chances = [rates.chance(i) for i in range(count)]
        return list(accumulate(chances, mul))

    def _rates(self, pace: Pace, source: str) -> Rates:
        return pace.rates.setdefault(source, Rates(self._overall(source)))

    def _overall(self, source: str) -> Rates:
        return self.overall.setdefault(source, Rates())


def _judge(pace: Pace, saved: float) -> None:
    """Switch drafting off after rounds that did not pay; after good ones the next pause is a short one again."""
    pace.saved = FADE * pace.saved + saved
    pace.rounds += 1
    pace.judged -= 1
    if pace.judged > 0:
        return
    if pace.saved < 0:
        pace.off, pace.judged = pace.pause, PROBES
        pace.pause = min(2 * pace.pause, LONGEST_PAUSE)
        pace.saved /= 4  # a probe is to outweigh what was before the pause
    elif pace.judged <= -PATIENCE:
        pace.pause = PAUSE


def _pace(row: Active) -> Pace:
    if row.pace is None:
        row.pace = Pace()
    return row.pace  # type: ignore[no-any-return]


def _joined(sources: Sequence[str]) -> str:
    return "+".join(sorted(set(filter(None, sources))))
