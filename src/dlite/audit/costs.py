"""What drafting and verifying cost for each number of drafts, timed at a few of the prompts and batch sizes: the price
side of break-even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dlite.audit.memory import fitting_batches
from dlite.audit.turns import Turn
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.base import Chooser, Drafter
from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.target.base import Target
from dlite.types import Proposal, Round, View

ROUNDS, BATCH_ROUNDS = 6, 4  # at each prompt for each K, alone and in a batch; the first is dropped
PROMPTS = 3


@dataclass(frozen=True)
class Load:
    """Where rounds are timed: ``requests`` rows of the batch, each behind the prompt of a turn."""

    turn: Turn
    requests: int


@dataclass(frozen=True)
class Cost:
    """Median seconds of a round of ``requests`` rows of the batch, each behind ``context`` tokens.

    Of the arm "plain": a whole round that verifies K drafts, K = 0 being a plain step. Of any other arm: what making
    up to K drafts adds to that.
    """

    arm: str
    K: int
    context: int
    seconds: float
    requests: int = 1


def measured_costs(
    target: Target, arms: Sequence[Arm], loads: Sequence[Load], advance: Callable[[int, str], None] = lambda *_: None
) -> list[Cost]:
    """Costs at every load; arms[0] is plain decoding. Of several requests at a time, some K only. Ctrl-C ends it early."""
    shared = PrefixCache(entries=1)  # neither of the two remembers anything of its own
    kept = {arm.name: PrefixCache(entries=1) for arm in arms[1:]}
    costs: list[Cost] = []
    try:
        for load in loads:
            counts = {arm.name: draft_counts(arm, few=load.requests > 1) for arm in arms[1:]}
            Ks = sorted({K for own in counts.values() for K in own})
            where = (len(load.turn.ids), load.requests)
            priced: tuple[tuple[Drafter, list[int]], ...] = ((NoDrafter(), [0]), (_Repeats(max(Ks, default=0)), Ks))
            for drafter, some in priced:
                engine = Engine(target, drafter, max_batch=load.requests, prefix=shared)
                for K in some:
                    rounds = [r for r in _rounds(engine, load, K) if r.proposed == K]
                    costs += _cost(PLAIN, K, where, [round_seconds(r) for r in rounds])
            for arm in arms[1:]:
                engine = Engine(target, arm.drafter, max_batch=load.requests, prefix=kept[arm.name])
                for K in counts[arm.name]:
                    costs += _cost(arm.name, K, where, [r.seconds_draft for r in _rounds(engine, load, K)])
            advance(1, f"{load.requests} × {len(load.turn.ids)} tokens")
    except KeyboardInterrupt:
        pass
    return costs


def priced_loads(target: Target, turns: Sequence[Turn], concurrency: int) -> list[Load]:
    """One request at up to three prompts; more at a time, up to the concurrency and to what memory holds, at the middle one."""
    prompts = spread_prompts(turns)
    middle = prompts[len(prompts) // 2]
    sizes = fitting_batches(target, len(middle.ids), concurrency)
    return [*(Load(turn, 1) for turn in prompts), *(Load(middle, size) for size in sizes if size > 1)]


def spread_prompts(turns: Sequence[Turn]) -> list[Turn]:
    """At most ``PROMPTS`` turns of different length, the shortest first."""
    by_length = sorted({len(turn.ids): turn for turn in turns}.items())
    count = min(PROMPTS, len(by_length))
    return [by_length[round(i * (len(by_length) - 1) / max(1, count - 1))][1] for i in range(count)]


def draft_counts(arm: Arm, *, few: bool = False) -> list[int]:
    """Every K up to the arm's own, above 8 only some; or a ``few`` of them, between which costs follow a line."""
    most = arm.drafter.max_drafts if arm.K is None else arm.K
    if few:
        return sorted({K for K in (1, (1 + most) // 2, most) if K})
    return [K for K in range(1, most + 1) if K <= 8 or K % 4 == 0 or most == K]


def round_seconds(one: Round) -> float:
    """The whole of a round."""
    return one.seconds_draft + one.seconds_verify + one.seconds_other


def _cost(arm: str, K: int, where: tuple[int, int], seconds: Sequence[float]) -> list[Cost]:
    context, requests = where
    return [Cost(arm, K, context, median(seconds), requests)] if seconds else []


def _rounds(engine: Engine, load: Load, K: int) -> list[Round]:
    """A few rounds with at most K drafts, those of the end of the context left out."""
    ids, count = load.turn.ids, ROUNDS if load.requests == 1 else BATCH_ROUNDS
    if load.requests > 1:  # the prompt is computed once, then shared
        first = engine.submit(Request(ids, 1, stop_ids=frozenset()))
        engine.run()
        engine.result(first)
    request = Request(ids, 1 + count * (K + 1), K or None, stop_ids=frozenset())
    numbers = [engine.submit(request) for _ in range(load.requests)]
    for _ in range(count):
        if engine.busy:
            engine.step()
    for number in numbers:
        engine.cancel(number)
    engine.run()
    return list(engine.result(numbers[0]).rounds[1:])  # a pass counts in full for every request in it


class _Repeats:
    """Proposes the last token over and over, at no cost: what remains is the price of verification."""

    name = "repeats"
    taps: tuple[int, ...] = ()

    def __init__(self, K: int) -> None:
        self.max_drafts = K

    def new_memory(self, rows: int) -> None:
        """It forgets."""

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """As many drafts as are wanted."""
        wanted = view.anchor.new_tensor(list(counts))
        return Proposal(view.anchor[:, None].expand(-1, max(counts)).contiguous(), wanted)

    def state_bytes(self, context: int) -> int:
        """Nothing."""
        return 0
