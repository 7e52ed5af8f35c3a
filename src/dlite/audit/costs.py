"""What a round costs for each number of drafts, measured at a few of the prompts: the price side of break-even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dlite.audit.turns import Turn
from dlite.bench.run import Arm
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.target.base import Target
from dlite.types import Round

ROUNDS = 6  # of each K at each prompt; the first is dropped
PROMPTS = 3


@dataclass(frozen=True)
class Cost:
    """Median seconds of a round with K drafts behind ``context`` tokens; K = 0 is a plain step."""

    arm: str
    K: int
    context: int
    seconds: float


def measured_costs(
    target: Target, arms: Sequence[Arm], turns: Sequence[Turn], advance: Callable[[int, str], None] = lambda *_: None
) -> list[Cost]:
    """Costs of every arm's drafter and of plain decoding (arms[0]) at the shortest, the middle and the longest prompt.

    Ctrl-C ends it early.
    """
    engines = {arm.name: Engine(target, arm.drafter, max_batch=1, prefix=PrefixCache(entries=1)) for arm in arms}
    costs: list[Cost] = []
    try:
        for turn in spread_prompts(turns):
            for arm in arms:
                for K in (0,) if arm is arms[0] else draft_counts(arm):
                    if seconds := _measured(engines[arm.name], turn, K):
                        costs.append(Cost(arm.name, K, len(turn.ids), seconds))
            advance(1, f"{len(turn.ids)} tokens")
    except KeyboardInterrupt:
        pass
    return costs


def spread_prompts(turns: Sequence[Turn]) -> list[Turn]:
    """At most ``PROMPTS`` turns of different length."""
    by_length = sorted({len(turn.ids): turn for turn in turns}.items())
    count = min(PROMPTS, len(by_length))
    return [by_length[round(i * (len(by_length) - 1) / max(1, count - 1))][1] for i in range(count)]


def draft_counts(arm: Arm) -> list[int]:
    """Every K up to the arm's own; above 8 only some."""
    most = arm.drafter.max_drafts if arm.K is None else arm.K
    return [K for K in range(1, most + 1) if K <= 8 or K % 4 == 0 or most == K]


def _measured(engine: Engine, turn: Turn, K: int) -> float | None:
    """The median of a few rounds; None where the answer ends before there are any."""
    number = engine.submit(Request(turn.ids, 1 + ROUNDS * (K + 1), K or None, stop_ids=frozenset()))
    for _ in range(ROUNDS):
        if engine.busy:
            engine.step()
    engine.cancel(number)
    engine.run()
    rounds = [r for r in engine.result(number).rounds[1:] if r.proposed == K]
    return median(round_seconds(r) for r in rounds) if rounds else None


def round_seconds(one: Round) -> float:
    """The whole of a round."""
    return one.seconds_draft + one.seconds_verify + one.seconds_other
