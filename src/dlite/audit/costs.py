"""What drafting and verifying cost for each number of drafts, timed at a few of the prompts: the price side of break-even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dlite.audit.turns import Turn
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.base import Chooser
from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.target.base import Target
from dlite.types import Proposal, Round, View

ROUNDS = 6  # at each prompt for each K; the first is dropped
PROMPTS = 3


@dataclass(frozen=True)
class Cost:
    """Median seconds behind ``context`` tokens.

    Of the arm "plain": a whole round that verifies K drafts, K = 0 being a plain step. Of any other arm: what making
    up to K drafts adds to that.
    """

    arm: str
    K: int
    context: int
    seconds: float


def measured_costs(
    target: Target, arms: Sequence[Arm], turns: Sequence[Turn], advance: Callable[[int, str], None] = lambda *_: None
) -> list[Cost]:
    """Costs at the shortest, the middle and the longest prompt; arms[0] is plain decoding. Ctrl-C ends it early."""
    counts = {arm.name: draft_counts(arm) for arm in arms[1:]}
    most = max((K for Ks in counts.values() for K in Ks), default=0)
    shared = PrefixCache(entries=1)  # neither of the two remembers anything of its own
    plain, verifying = (Engine(target, d, max_batch=1, prefix=shared) for d in (NoDrafter(), _Repeats(most)))
    drafting = {arm.name: Engine(target, arm.drafter, max_batch=1, prefix=PrefixCache(entries=1)) for arm in arms[1:]}
    costs: list[Cost] = []
    try:
        for turn in spread_prompts(turns):
            context = len(turn.ids)
            for K in (0, *sorted({K for Ks in counts.values() for K in Ks})):
                rounds = [r for r in _rounds(verifying if K else plain, turn, K) if r.proposed == K]
                costs += [Cost(PLAIN, K, context, median(map(round_seconds, rounds)))] if rounds else []
            for arm in arms[1:]:
                for K in counts[arm.name]:
                    spent = [r.seconds_draft for r in _rounds(drafting[arm.name], turn, K)]
                    costs += [Cost(arm.name, K, context, median(spent))] if spent else []
            advance(1, f"{context} tokens")
    except KeyboardInterrupt:
        pass
    return costs


def spread_prompts(turns: Sequence[Turn]) -> list[Turn]:
    """At most ``PROMPTS`` turns of different length, the shortest first."""
    by_length = sorted({len(turn.ids): turn for turn in turns}.items())
    count = min(PROMPTS, len(by_length))
    return [by_length[round(i * (len(by_length) - 1) / max(1, count - 1))][1] for i in range(count)]


def draft_counts(arm: Arm) -> list[int]:
    """Every K up to the arm's own; above 8 only some."""
    most = arm.drafter.max_drafts if arm.K is None else arm.K
    return [K for K in range(1, most + 1) if K <= 8 or K % 4 == 0 or most == K]


def round_seconds(one: Round) -> float:
    """The whole of a round."""
    return one.seconds_draft + one.seconds_verify + one.seconds_other


def _rounds(engine: Engine, turn: Turn, K: int) -> list[Round]:
    """A few rounds with at most K drafts, those of the end of the context left out."""
    number = engine.submit(Request(turn.ids, 1 + ROUNDS * (K + 1), K or None, stop_ids=frozenset()))
    for _ in range(ROUNDS):
        if engine.busy:
            engine.step()
    engine.cancel(number)
    engine.run()
    return list(engine.result(number).rounds[1:])


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
