"""From trials to figures: one row for each workload, span of context lengths and arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlite.bench.run import PLAIN, BenchResult, Trial
from dlite.engine.stats import acceptance_by_position, tau
from dlite.types import Round, Seconds

ALL = "all"
BUCKETS = (("0-1K", 1024), ("1-2K", 2048), ("2-4K", 4096), ("4-8K", 8192), ("8K+", 1 << 60))  # below so many tokens
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95% bootstrap interval over calls; no interval from fewer than two calls."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Figures:
    """One arm on the calls of one workload and one span of context lengths.

    ``loops`` calls ended in repetition; unless they were asked for, nothing else here counts them.
    ``tokens`` and ``tau`` leave out the token that comes with the prefill.
    ``round_cost`` c = median round time / median plain decode step time.
    ``speedup`` = plain / arm decode seconds per token, a ratio of sums over the same calls; ``call_ratio`` the ratio of
    median seconds per call, prefill included. Like ``tokens_per_second`` they are None unless the arm is lossless.
    """

    workload: str
    context: str
    arm: str
    calls: int
    loops: int
    near_ties: int
    tokens: int
    rounds: int
    tau: Estimate | None
    acceptance: tuple[float, ...]
    round_cost: float | None
    speedup: Estimate | None
    tokens_per_second: float | None
    call_seconds: float | None
    call_ratio: float | None
    draft_ms: float | None
    verify_ms: float | None
    other_share: float | None
    seconds: Seconds


def figures(result: BenchResult) -> list[Figures]:
    """Every workload, then all together if there are several; each in full and by context length of the prompt."""
    by_call: dict[str, dict[str, Trial]] = {}
    for trial in result.trials:
        by_call.setdefault(trial.call, {})[trial.arm] = trial
    calls = list(by_call.values())
    workloads = list(dict.fromkeys(call[PLAIN].workload for call in calls))
    rows = []
    for workload in workloads + ([ALL] if len(workloads) > 1 else []):
        mine = [call for call in calls if workload in (ALL, call[PLAIN].workload)]
        for context in (ALL, *(name for name, _ in BUCKETS)):
            inside = [call for call in mine if context in (ALL, bucket(call[PLAIN].generation.prompt_tokens))]
            if inside:
                rows += [_row(result, workload, context, arm.name, inside) for arm in result.arms]
    return rows


def bucket(tokens: int) -> str:
    """The span of context lengths that ``tokens`` prompt tokens fall into."""
    return next(name for name, below in BUCKETS if tokens < below)


def bootstrap(
    columns: Array, statistic: Callable[[Array], Array], *, seed: int, resamples: int = 1000
) -> Estimate | None:
    """A statistic of column sums and its 95% interval: calls [n,c] are drawn with replacement, the seed decides which.

    ``statistic`` maps sums [...,c] to values [...]. None where it is not a number.
    """
    n = len(columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(columns.sum(0)))
        if not np.isfinite(value):
            return None
        if n < 2:
            return Estimate(value, None, None)
        times_drawn = np.random.default_rng(seed).multinomial(n, [1 / n] * n, size=resamples)
        values = statistic(times_drawn @ columns)
    low, high = np.percentile(values[np.isfinite(values)], [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def _row(result: BenchResult, workload: str, context: str, arm: str, calls: Sequence[dict[str, Trial]]) -> Figures:
    kept = [call for call in calls if result.settings.include_loops or not call[PLAIN].looping]
    plain, mine = [call[PLAIN].generation for call in kept], [call[arm].generation for call in kept]
    rounds = [r for one in mine for r in one.rounds]
    steps = [_ms(r) for one in plain for r in one.rounds]
    seconds = _total([one.seconds for one in mine])
    names = {call[PLAIN].call for call in calls}
    ties = sum(c.arm == arm and c.call in names and c.difference is not None and c.passed for c in result.checks)
    lossless = result.lossless(arm) is True
    estimate = partial(bootstrap, seed=result.settings.seed, resamples=result.settings.resamples)
    counts = np.array([_counts(one) for one in mine], dtype=np.float64).reshape(-1, 3)
    pairs = np.hstack([counts, np.array([_counts(one) for one in plain], dtype=np.float64).reshape(-1, 3)])
    length = estimate(counts, _tokens_per_round)
    spent, spent_plain = ([one.seconds.total for one in some] for some in (mine, plain))
    tokens = sum(r.committed for r in rounds)
    return Figures(
        workload=workload,
        context=context,
        arm=arm,
        calls=len(kept),
        loops=sum(call[PLAIN].looping for call in calls),
        near_ties=ties,
        tokens=tokens,
        rounds=len(rounds),
        tau=replace(length, value=tau(rounds)) if length else None,
        acceptance=tuple(acceptance_by_position(rounds)),
        round_cost=_ratio(_median([_ms(r) for r in rounds]), _median(steps)),
        speedup=estimate(pairs, _speedup) if lossless else None,
        tokens_per_second=_ratio(tokens, seconds.decode) if lossless else None,
        call_seconds=_median(spent),
        call_ratio=_ratio(_median(spent_plain), _median(spent)) if lossless else None,
        draft_ms=_median([1e3 * r.seconds_draft for r in rounds]),
        verify_ms=_median([1e3 * r.seconds_verify for r in rounds]),
        other_share=_ratio(seconds.other, seconds.decode),
        seconds=seconds,
    )


def _counts(one: Any) -> tuple[float, float, float]:
    return sum(r.committed for r in one.rounds), len(one.rounds), one.seconds.decode


def _tokens_per_round(sums: Array) -> Array:
    return np.asarray(sums[..., 0] / sums[..., 1])


def _speedup(sums: Array) -> Array:
    """Sums of (tokens, rounds, seconds) of the arm, then of plain decoding."""
    return np.asarray((sums[..., 5] / sums[..., 3]) / (sums[..., 2] / sums[..., 0]))


def _ms(item: Round) -> float:
    return 1e3 * (item.seconds_draft + item.seconds_verify + item.seconds_other)


def _total(parts: Sequence[Seconds]) -> Seconds:
    return Seconds(
        sum(s.prefill for s in parts),
        sum(s.draft for s in parts),
        sum(s.verify for s in parts),
        sum(s.other for s in parts),
    )


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
