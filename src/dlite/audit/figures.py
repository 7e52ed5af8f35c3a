"""From replayed turns to figures: by context length, turn and tool for whole calls, by span for single tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlite.audit.costs import round_seconds
from dlite.audit.marks import TARGET, Mark
from dlite.audit.replay import Replay, Trial
from dlite.audit.spans import SPANS
from dlite.audit.turns import Turn
from dlite.bench.figures import Estimate, bootstrap
from dlite.bench.run import PLAIN
from dlite.types import Round, Seconds, acceptance_by_position, tau

ALL, COPIED, NO_TOOL = "all", "copied from the history", "no tool"
LIMITS = tuple(1024 << i for i in range(8))  # 1K to 128K tokens
TURNS = ((1, "1"), (3, "2-3"), (7, "4-7"), (15, "8-15"), (31, "16-31"), (63, "32-63"))
Array = NDArray[np.float64]
TrialMarks = Mapping[tuple[str, str], Sequence[Mark]]  # (turn, arm) -> the tokens of its main run


@dataclass(frozen=True)
class Figures:
    """One arm on the calls of one group; ``by`` says what groups them. Loops are left out unless they were asked for.

    ``tau`` and ``tokens`` leave out the token that comes with the prefill. ``round_cost`` c = median round time / median
    plain step. ``speedup`` = plain / arm decode seconds a token, a ratio of sums; ``call_ratio`` the same of whole calls,
    prefill included; both None unless the arm is lossless. ``seconds`` are sums.
    """

    by: str
    group: str
    arm: str
    calls: int
    context: float
    tokens: int
    rounds: int
    tau: Estimate | None
    acceptance: tuple[float, ...]
    round_cost: float | None
    speedup: Estimate | None
    call_ratio: Estimate | None
    seconds: Seconds


@dataclass(frozen=True)
class SourceFigures:
    """What one drafter, or one part of a composed drafter, gave: rounds it drafted in, and accepted drafts.

    Of the source "target": the tokens that no draft gave; ``rounds`` are those without any drafts. ``share`` is of all
    tokens of the arm; ``tau`` that of the rounds, 0 where there are none.
    """

    arm: str
    source: str
    rounds: int
    tokens: int
    share: float
    tau: float


@dataclass(frozen=True)
class SpanFigures:
    """The tokens of one kind of text: how many, and which share of them were accepted drafts."""

    span: str
    arm: str
    calls: int
    tokens: int
    share: float
    accepted: Estimate | None


def figures(replay: Replay, *, include_loops: bool, seed: int) -> list[Figures]:
    """All calls, then by context length, turn and tool; the arms of a group follow each other."""
    kept = [turn for turn in replay.turns if include_loops or turn.id not in replay.looping]
    main = {(t.turn, t.arm): t for t in replay.trials if t.reuse == replay.settings.main}
    rows = []
    keys: dict[str, Callable[[Turn], str]] = {
        "all": lambda turn: ALL,
        "context": lambda turn: context_bucket(len(turn.ids)),
        "turn": lambda turn: turn_bucket(turn.number),
        "tool": lambda turn: turn.tool or NO_TOOL,
    }
    for by, key in keys.items():
        for group in _ordered(by, [key(turn) for turn in kept]):
            inside = [turn for turn in kept if key(turn) == group]
            for arm in replay.arms:
                pairs = [(main[turn.id, arm.name], main[turn.id, PLAIN]) for turn in inside]
                lossless = replay.lossless(arm.name) is True
                rows.append(_row(by, group, arm.name, inside, pairs, lossless=lossless, seed=seed))
    return rows


def span_figures(replay: Replay, marks: TrialMarks, *, include_loops: bool, seed: int) -> list[SpanFigures]:
    """Every span that occurs, then what is copied from the history, whatever span it is in; drafting arms only."""
    kept = [turn.id for turn in replay.turns if include_loops or turn.id not in replay.looping]
    rows = []
    for span in (*SPANS, COPIED):
        for arm in replay.arms[1:]:
            lists = [[m for m in marks[turn, arm.name] if span in (m.span, m.copied and COPIED)] for turn in kept]
            total = sum(len(marks[turn, arm.name]) for turn in kept)
            counts = [(sum(m.position > 0 for m in some), len(some)) for some in lists if some]
            if counts:
                columns = np.array(counts, dtype=np.float64)
                tokens = sum(count for _, count in counts)
                accepted = bootstrap(columns, _first_over_second, seed=seed)
                rows.append(SpanFigures(span, arm.name, len(counts), tokens, tokens / total, accepted))
    return rows


def source_figures(replay: Replay, marks: TrialMarks, *, include_loops: bool) -> list[SourceFigures]:
    """Who gave the tokens of each drafting arm, the target last."""
    kept = [turn.id for turn in replay.turns if include_loops or turn.id not in replay.looping]
    main = {(t.turn, t.arm): t.generation.rounds for t in replay.trials if t.reuse == replay.settings.main}
    rows = []
    for arm in replay.arms[1:]:
        tokens = Counter(mark.source for turn in kept for mark in marks[turn, arm.name])
        rounds: dict[str, list[Round]] = {}
        for one in (r for turn in kept for r in main[turn, arm.name]):
            rounds.setdefault((one.source or arm.drafter.name) if one.proposed else TARGET, []).append(one)
        for source in (*sorted({*tokens, *rounds} - {TARGET}), TARGET):
            mine = rounds.get(source, [])
            share = tokens[source] / (tokens.total() or 1)
            rows.append(SourceFigures(arm.name, source, len(mine), tokens[source], share, tau(mine)))
    return rows if kept else []


def context_bucket(tokens: int) -> str:
    """The span of lengths that a prompt falls into: below 1K, 1-2K, 2-4K, ... 128K and more."""
    for i, limit in enumerate(LIMITS):
        if tokens < limit:
            return f"{LIMITS[i - 1] >> 10}-{limit >> 10}K" if i else "below 1K"
    return f"{LIMITS[-1] >> 10}K and more"


def turn_bucket(number: int) -> str:
    """1, 2-3, 4-7, ... 64 and later."""
    return next((name for last, name in TURNS if number <= last), "64 and later")


def _ordered(by: str, groups: Sequence[str]) -> list[str]:
    """Lengths and turns as they grow, tools by how often they are called."""
    if by == "tool":
        return sorted(set(groups), key=lambda group: (-groups.count(group), group))
    order = [ALL, *(context_bucket(limit - 1) for limit in (*LIMITS, 1 << 60)), *(name for _, name in TURNS)]
    return sorted(set(groups), key=lambda group: order.index(group) if group in order else len(order))


def _row(
    by: str,
    group: str,
    arm: str,
    turns: Sequence[Turn],
    pairs: Sequence[tuple[Trial, Trial]],
    *,
    lossless: bool,
    seed: int,
) -> Figures:
    mine, plain = [one.generation for one, _ in pairs], [one.generation for _, one in pairs]
    rounds = [r for one in mine for r in one.rounds]
    estimate = partial(bootstrap, seed=seed)
    columns = np.array([[*_sums(a), *_sums(b)] for a, b in zip(mine, plain, strict=True)], dtype=np.float64)
    length = estimate(columns, _first_over_second)
    return Figures(
        by=by,
        group=group,
        arm=arm,
        calls=len(mine),
        context=median(len(turn.ids) for turn in turns),
        tokens=sum(r.committed for r in rounds),
        rounds=len(rounds),
        tau=replace(length, value=tau(rounds)) if length else None,
        acceptance=tuple(acceptance_by_position(rounds)),
        round_cost=_cost(rounds, [r for one in plain for r in one.rounds]),
        speedup=estimate(columns, _speedup) if lossless else None,
        call_ratio=estimate(columns, _call_ratio) if lossless else None,
        seconds=total([one.seconds for one in mine]),
    )


def total(parts: Sequence[Seconds]) -> Seconds:
    """The sum of times, part by part."""
    return Seconds(*(sum(getattr(s, name) for s in parts) for name in ("prefill", "draft", "verify", "other")))


def _sums(one: Any) -> tuple[float, float, float, float, float]:
    """Tokens behind the first, rounds, decode seconds, all tokens, all seconds."""
    committed = sum(r.committed for r in one.rounds)
    return committed, len(one.rounds), one.seconds.decode, len(one.token_ids), one.seconds.total


def _first_over_second(sums: Array) -> Array:
    return np.asarray(sums[..., 0] / sums[..., 1])


def _speedup(sums: Array) -> Array:
    return np.asarray((sums[..., 7] / sums[..., 5]) / (sums[..., 2] / sums[..., 0]))


def _call_ratio(sums: Array) -> Array:
    return np.asarray((sums[..., 9] / sums[..., 8]) / (sums[..., 4] / sums[..., 3]))


def _cost(rounds: Sequence[Round], steps: Sequence[Round]) -> float | None:
    if not rounds or not steps:
        return None
    return median(map(round_seconds, rounds)) / median(map(round_seconds, steps))
