from __future__ import annotations

from typing import Any

from dlite.audit.costs import draft_counts, measured_costs, spread_prompts
from dlite.audit.replay import Replay
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.none import NoDrafter

from .support import Guesser


def test_every_k_at_the_shortest_the_middle_and_the_longest_prompt(target: Any, done: Replay) -> None:
    seen: list[str] = []
    costs = measured_costs(target, done.arms, done.turns, lambda count, note: seen.append(note))
    lengths = sorted({len(turn.ids) for turn in done.turns})
    contexts = {lengths[0], lengths[-1], len(spread_prompts(done.turns)[1].ids)}
    assert {cost.context for cost in costs} == contexts
    for context in contexts:
        here = [(cost.arm, cost.K) for cost in costs if cost.context == context]
        assert here == [
            *((PLAIN, K) for K in (0, 1, 2, 3, 4)),
            *(("good", K) for K in (1, 2, 3, 4)),
            *(("poor K=2", K) for K in (1, 2)),
        ]
    assert all(cost.seconds > 0 for cost in costs)
    assert len(seen) == 3


def test_many_drafts_are_priced_at_some_counts_only(target: Any) -> None:
    assert draft_counts(Arm("a", Guesser(target, K=18))) == [*range(1, 9), 12, 16, 18]
    assert draft_counts(Arm("a", Guesser(target, K=18), 3)) == [1, 2, 3]


def test_verification_is_priced_for_a_drafter_that_proposes_little(target: Any, done: Replay) -> None:
    silent = NoDrafter()
    silent.max_drafts = 2
    costs = measured_costs(target, [Arm(PLAIN, NoDrafter()), Arm("silent", silent)], done.turns[:1])
    assert [(cost.arm, cost.K) for cost in costs] == [(PLAIN, 0), (PLAIN, 1), (PLAIN, 2), ("silent", 1), ("silent", 2)]


def test_ctrl_c_ends_it(target: Any, done: Replay) -> None:
    def stop(count: int, note: str) -> None:
        raise KeyboardInterrupt

    costs = measured_costs(target, done.arms, done.turns, stop)
    assert len({cost.context for cost in costs}) == 1
