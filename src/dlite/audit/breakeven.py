"""Break-even: what a round brings, tau, against what it costs in plain steps, c. Decoding gains where tau / c > 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlite.audit.costs import Cost
from dlite.audit.figures import Figures
from dlite.audit.replay import Replay
from dlite.types import Round


@dataclass(frozen=True)
class Pace:
    """Decoding with K drafts: tokens a round and cost of a round in plain steps, both means over the rounds measured."""

    K: int
    tau: float
    cost: float

    @property
    def speed(self) -> float:
        """Predicted decode speed-up."""
        return self.tau / self.cost


@dataclass(frozen=True)
class BreakEven:
    """One arm: every K overall, and at each prompt length where costs were measured.

    ``loses_from`` is the first group of context lengths from which on the measured speed-up stays below 1.
    """

    arm: str
    paces: tuple[Pace, ...]
    by_context: tuple[tuple[int, tuple[Pace, ...]], ...]
    loses_from: str | None


def break_even(
    replay: Replay, costs: Sequence[Cost], rows: Sequence[Figures], *, include_loops: bool
) -> list[BreakEven]:
    """Break-even of every drafting arm that is the target's own text and whose costs are known."""
    found = []
    for arm in replay.arms[1:]:
        if replay.lossless(arm.name):
            rounds = _rounds(replay, arm.name, include_loops)
            prices = _prices(costs, arm.name)
            if rounds and prices:
                near = {context: [r for r in rounds if _nearest(prices, r.context) == context] for context in prices}
                by_context = tuple((c, _paces(near[c] or rounds, {c: prices[c]})) for c in prices)
                found.append(BreakEven(arm.name, _paces(rounds, prices), by_context, loses_from(rows, arm.name)))
    return found


def loses_from(rows: Sequence[Figures], arm: str) -> str | None:
    """The first context group from which on, to the longest, an arm decodes more slowly than plainly."""
    groups = [(row.group, row.speedup.value) for row in rows if row.by == "context" and row.arm == arm and row.speedup]
    first = None
    for group, speedup in reversed(groups):
        if speedup >= 1:
            break
        first = group
    return first


def tau_at(rounds: Sequence[Round], K: int) -> float:
    """tau had every round been cut to K drafts: what they commit is cut, where they begin stays as it was."""
    return sum(min(r.committed, K + 1) for r in rounds) / len(rounds)


def _rounds(replay: Replay, arm: str, include_loops: bool) -> list[Round]:
    return [
        r
        for trial in replay.trials
        if trial.arm == arm and trial.reuse == replay.settings.main
        if include_loops or trial.turn not in replay.looping
        for r in trial.generation.rounds
    ]


def _prices(costs: Sequence[Cost], arm: str) -> dict[int, dict[int, float]]:
    """context -> K -> cost of a round in plain steps."""
    plain = {cost.context: cost.seconds for cost in costs if cost.K == 0}
    prices: dict[int, dict[int, float]] = {}
    for cost in costs:
        if cost.arm == arm and cost.K and cost.context in plain:
            prices.setdefault(cost.context, {})[cost.K] = cost.seconds / plain[cost.context]
    return prices


def _paces(rounds: Sequence[Round], prices: dict[int, dict[int, float]]) -> tuple[Pace, ...]:
    """Every K that was priced everywhere; a round costs what one does at the nearest length."""
    shared = set.intersection(*(set(row) for row in prices.values()))
    places = [_nearest(prices, r.context) for r in rounds]
    return tuple(
        Pace(K, tau_at(rounds, K), sum(prices[place][K] for place in places) / len(places)) for K in sorted(shared)
    )


def _nearest(prices: dict[int, dict[int, float]], context: int) -> int:
    return min(prices, key=lambda known: abs(known - context))
