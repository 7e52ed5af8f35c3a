from __future__ import annotations

from typing import Any

import pytest

from dlite.audit import memory
from dlite.audit.costs import Load, draft_counts, measured_costs, priced_loads, spread_prompts
from dlite.audit.replay import Replay
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.none import NoDrafter

from .support import Guesser


def test_every_k_at_the_shortest_the_middle_and_the_longest_prompt(target: Any, done: Replay) -> None:
    seen: list[str] = []
    loads = priced_loads(target, done.turns, 1)
    costs = measured_costs(target, done.arms, loads, lambda count, note: seen.append(note))
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


def test_several_requests_at_a_time_are_priced_at_the_middle_prompt(target: Any, done: Replay) -> None:
    loads = priced_loads(target, done.turns, 6)
    assert [load.requests for load in loads] == [1, 1, 1, 2, 4, 6]
    middle = loads[1].turn
    assert {load.turn for load in loads[3:]} == {middle}
    costs = measured_costs(target, done.arms, loads[3:])
    assert {cost.context for cost in costs} == {len(middle.ids)}
    for requests in (2, 4, 6):
        here = [(cost.arm, cost.K) for cost in costs if cost.requests == requests]
        plain, good = [(PLAIN, K) for K in (0, 1, 2, 4)], [("good", K) for K in (1, 2, 4)]
        assert here == [*plain, *good, ("poor K=2", 1), ("poor K=2", 2)]


def test_a_batch_is_a_batch(target: Any, done: Replay) -> None:
    """Every round that is timed verifies all the requests in one pass."""
    seen: list[int] = []

    class Watching(Guesser):
        def propose(self, view: Any, counts: Any, chooser: Any) -> Any:
            seen.append(len(counts))
            return super().propose(view, counts, chooser)

    arms = [done.arms[0], Arm("w", Watching(target, K=1))]
    measured_costs(target, arms, [Load(done.turns[0], 3)])
    assert set(seen) == {3}
    assert len(seen) >= 4


def test_no_more_requests_than_memory_holds(target: Any, done: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    middle = spread_prompts(done.turns)[1]
    need = len(middle.ids) * memory.kv_bytes_per_token(target)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * 4 * need)
    assert [load.requests for load in priced_loads(target, done.turns, 16)] == [1, 1, 1, 2, 4]
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    assert [load.requests for load in priced_loads(target, done.turns, 16)] == [1, 1, 1]


def test_many_drafts_are_priced_at_some_counts_only(target: Any) -> None:
    assert draft_counts(Arm("a", Guesser(target, K=18))) == [*range(1, 9), 12, 16, 18]
    assert draft_counts(Arm("a", Guesser(target, K=18), 3)) == [1, 2, 3]
    assert [draft_counts(Arm("a", Guesser(target, K=K)), few=True) for K in (7, 2, 1)] == [[1, 4, 7], [1, 2], [1]]


def test_verification_is_priced_for_a_drafter_that_proposes_little(target: Any, done: Replay) -> None:
    silent = NoDrafter()
    silent.max_drafts = 2
    costs = measured_costs(target, [Arm(PLAIN, NoDrafter()), Arm("silent", silent)], [Load(done.turns[0], 1)])
    assert [(cost.arm, cost.K) for cost in costs] == [(PLAIN, 0), (PLAIN, 1), (PLAIN, 2), ("silent", 1), ("silent", 2)]


def test_ctrl_c_ends_it(target: Any, done: Replay) -> None:
    def stop(count: int, note: str) -> None:
        raise KeyboardInterrupt

    costs = measured_costs(target, done.arms, priced_loads(target, done.turns, 1), stop)
    assert len({cost.context for cost in costs}) == 1
