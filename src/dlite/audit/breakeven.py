"""Break-even: what a round brings, tau, against what it costs in plain steps, c. Decoding gains where tau / c > 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlite.audit.costs import Cost
from dlite.audit.figures import Figures
from dlite.audit.replay import Replay
from dlite.bench.run import PLAIN
from dlite.types import Round

Prices = Mapping[int, Mapping[int, float]]  # context -> K -> seconds


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
    """One arm: every K overall, at each prompt length where costs were measured, and for each number of requests at a time.

    ``loses_from`` is the first group of context lengths from which on the measured speed-up stays below 1. ``by_batch``
    is priced behind ``batch_context`` tokens; ``stops`` are, for each K, the requests at a time from which on its predicted
    speed-up stays below 1, None where it never does.
    """

    arm: str
    paces: tuple[Pace, ...]
    by_context: tuple[tuple[int, tuple[Pace, ...]], ...]
    loses_from: str | None
    batch_context: int | None
    by_batch: tuple[tuple[int, tuple[Pace, ...]], ...]
    stops: tuple[tuple[int, int | None], ...]


def break_even(
    replay: Replay, costs: Sequence[Cost], rows: Sequence[Figures], *, include_loops: bool
) -> list[BreakEven]:
    """Break-even of every drafting arm that is the target's own text and whose costs are known."""
    found, alone = [], [cost for cost in costs if cost.requests == 1]
    verifying = _prices(alone, PLAIN)
    for arm in replay.arms[1:]:
        rounds, drafting = _rounds(replay, arm.name, include_loops), _prices(alone, arm.name)
        contexts = [c for c in drafting if 0 in verifying.get(c, {})]
        if replay.lossless(arm.name) and rounds and contexts:
            near: dict[int, list[Round]] = {context: [] for context in contexts}
            for one in rounds:
                near[min(contexts, key=lambda known: abs(known - one.context))].append(one)
            priced = {c: _priced(some, drafting[c], verifying[c]) for c, some in near.items()}
            by_context = tuple((c, _paces(some, priced[c])) for c, some in near.items() if some)
            overall = _paces(rounds, _joined(priced))
            context, by_batch = _batches(rounds, costs, arm.name)
            loses = loses_from(rows, arm.name)
            found.append(BreakEven(arm.name, overall, by_context, loses, context, by_batch, stops(by_batch)))
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


def stops(by_batch: Sequence[tuple[int, Sequence[Pace]]]) -> tuple[tuple[int, int | None], ...]:
    """For each K: the number of requests from which on, to the largest, decoding would be slower than plain."""
    found: dict[int, int | None] = {pace.K: None for _, paces in by_batch for pace in paces}
    paying: set[int] = set()
    for requests, paces in reversed(by_batch):
        paying |= {pace.K for pace in paces if pace.speed >= 1}
        found |= {pace.K: requests for pace in paces if pace.K not in paying}
    return tuple(sorted(found.items()))


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
    prices: dict[int, dict[int, float]] = {}
    for cost in costs:
        if cost.arm == arm:
            prices.setdefault(cost.context, {})[cost.K] = cost.seconds
    return prices


def _priced(
    rounds: Sequence[Round], drafting: Mapping[int, float], verifying: Mapping[int, float]
) -> dict[int, list[float]]:
    """K -> the cost of each round, in plain steps, had it been cut to K drafts; a drafter may have proposed fewer."""
    proposed = np.array([r.proposed for r in rounds])
    return {
        K: list((_between(verifying, np.minimum(proposed, K)) + draft) / verifying[0]) for K, draft in drafting.items()
    }


def _joined(priced: Mapping[int, Mapping[int, list[float]]]) -> dict[int, list[float]]:
    """The rounds of all contexts together, for every K that was priced at each."""
    shared = set.intersection(*(set(row) for row in priced.values()))
    return {K: [cost for row in priced.values() for cost in row[K]] for K in shared}


def _paces(rounds: Sequence[Round], priced: Mapping[int, Sequence[float]]) -> tuple[Pace, ...]:
    return tuple(Pace(K, tau_at(rounds, K), float(np.mean(priced[K]))) for K in sorted(priced))


def _batches(
    rounds: Sequence[Round], costs: Sequence[Cost], arm: str
) -> tuple[int | None, tuple[tuple[int, tuple[Pace, ...]], ...]]:
    """The context at which several requests at a time were priced, and every K for each number of them."""
    context = next((cost.context for cost in costs if cost.requests > 1), None)
    found = []
    for requests in sorted({cost.requests for cost in costs if cost.context == context}):
        here = [cost for cost in costs if (cost.context, cost.requests) == (context, requests)]
        verifying, drafting = ({c.K: c.seconds for c in here if c.arm == name} for name in (PLAIN, arm))
        if 0 in verifying and drafting:
            Ks = range(1, max(drafting) + 1)
            costing = {K: [_together(rounds, K, requests, drafting, verifying)] for K in Ks}
            found.append((requests, _paces(rounds, costing)))
    return context, tuple(found)


def _together(
    rounds: Sequence[Round], K: int, requests: int, drafting: Mapping[int, float], verifying: Mapping[int, float]
) -> float:
    """Mean cost of a round in plain steps of as many requests: the pass is as wide as the longest proposal among them."""
    widths, counts = np.unique([min(r.proposed, K) for r in rounds], return_counts=True)
    chances = np.diff([0.0, *(np.cumsum(counts) / len(rounds)) ** requests])
    seconds = float(chances @ _between(verifying, widths)) + float(_between(drafting, [K])[0])
    return seconds / verifying[0]


def _between(prices: Mapping[int, float], counts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    known = sorted(prices)
    return np.interp(counts, known, [prices[K] for K in known])
