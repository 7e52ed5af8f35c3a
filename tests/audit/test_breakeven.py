from __future__ import annotations

from dataclasses import replace

import pytest

from dlite.audit.breakeven import BreakEven, Pace, break_even, loses_from, stops, tau_at
from dlite.audit.costs import Cost
from dlite.audit.figures import Figures, figures
from dlite.audit.replay import Replay
from dlite.bench.figures import Estimate
from dlite.bench.run import PLAIN
from dlite.types import Round, Seconds, tau

from .support import costs_of


def even(done: Replay, **price: float) -> dict[str, BreakEven]:
    rows = figures(done, include_loops=True, seed=0)
    return {one.arm: one for one in break_even(done, costs_of(done, **price), rows, include_loops=True)}


def test_tau_had_there_been_fewer_drafts() -> None:
    rounds = [Round(4, 4, 5, 0), Round(4, 1, 2, 0), Round(4, 0, 1, 0)]
    assert [tau_at(rounds, K) for K in (1, 2, 4)] == [5 / 3, 2, pytest.approx(8 / 3)]
    assert tau_at(rounds, 4) == tau(rounds)


def test_what_a_round_brings_against_what_it_costs(done: Replay) -> None:
    found = even(done, per_row=0.1)
    assert list(found) == ["good", "poor K=2"]
    good = found["good"]
    assert [pace.K for pace in good.paces] == [1, 2, 3, 4]
    for pace in good.paces:
        assert pace.cost == pytest.approx(1 + 0.1 * pace.K, rel=0.05)  # rounds at an answer's end have fewer drafts
        assert pace.speed == pace.tau / pace.cost
    assert even(done, per_row=0.1, draft=0.5)["good"].paces[0].cost == pytest.approx(1.6, rel=0.05)
    assert [pace.tau for pace in good.paces] == sorted(pace.tau for pace in good.paces)
    assert len(good.by_context) == 2
    assert [pace.K for pace in found["poor K=2"].paces] == [1, 2]


def test_a_round_costs_what_was_proposed_in_it(done: Replay) -> None:
    """A drafter that finds nothing to copy proposes nothing, and pays for no rows."""
    trials = tuple(
        replace(t, generation=replace(t.generation, rounds=(Round(0, 0, 1, 400, 1.0), Round(2, 1, 2, 400, 1.0))))
        for t in done.trials
    )
    paces = even(replace(done, trials=trials), per_row=0.5)["good"].paces
    assert [(pace.K, pace.tau, pace.cost) for pace in paces[:2]] == [(1, 1.5, 1.25), (2, 1.5, 1.5)]
    assert paces[3].cost == 1.5


def test_dear_rows_make_few_drafts_best(done: Replay) -> None:
    cheap, dear = (even(done, per_row=price)["good"].paces for price in (0.001, 2.0))
    best = [max(paces, key=lambda pace: pace.speed) for paces in (cheap, dear)]
    assert (best[0].K, best[1].K) == (4, 1)
    assert best[1].speed < 1


def test_nothing_is_said_of_an_arm_that_is_not_the_targets_text_or_has_no_price(done: Replay) -> None:
    rows = figures(done, include_loops=True, seed=0)
    unchecked = replace(done, checks=tuple(c for c in done.checks if c.arm != "good"))
    assert [b.arm for b in break_even(unchecked, costs_of(done), rows, include_loops=True)] == ["poor K=2"]
    assert break_even(done, [], rows, include_loops=True) == []


@pytest.mark.parametrize(
    ("speeds", "group"),
    [([1.5, 1.2], None), ([1.5, 0.9], "1-2K"), ([0.9, 0.8], "below 1K"), ([0.9, 1.1], None), ([1.1, None], None)],
)
def test_from_which_length_on_it_costs_more_than_it_gives(speeds: list[float | None], group: str | None) -> None:
    rows = [
        Figures("context", name, "a", 1, 0, 1, 1, None, (), None, s and Estimate(s, None, None), None, Seconds())
        for name, s in zip(("below 1K", "1-2K"), speeds, strict=True)
    ]
    assert loses_from(rows, "a") == group


def batched(done: Replay, rounds: tuple[Round, ...], row: dict[int, float]) -> BreakEven:
    """The good guesser had these rounds; with several requests at a time a row costs more."""
    trials = tuple(replace(t, generation=replace(t.generation, rounds=rounds)) for t in done.trials)
    context = costs_of(done)[0].context
    costs = [
        Cost(arm, K, context, 1 + K * price if arm == PLAIN else 0.1, requests)
        for requests, price in row.items()
        for arm, Ks in ((PLAIN, (0, 1, 4)), ("good", (1, 2, 4)))
        for K in Ks
    ]
    return next(one for one in break_even(replace(done, trials=trials), costs, [], include_loops=True))


def test_from_how_many_requests_on_each_k_costs_more_than_it_gives(done: Replay) -> None:
    found = batched(done, (Round(4, 1, 2, 400),), {1: 0.0, 2: 0.2, 8: 0.8, 16: 2.0})
    assert found.batch_context == costs_of(done)[0].context
    assert [requests for requests, _ in found.by_batch] == [1, 2, 8, 16]
    assert found.by_batch[1][1][3] == Pace(4, 2.0, pytest.approx(1 + 4 * 0.2 + 0.1))
    assert found.by_batch[1][1][2] == Pace(3, 2.0, pytest.approx(1 + 3 * 0.2 + 0.1))  # between those measured
    assert found.stops == ((1, 16), (2, 8), (3, 8), (4, 8))
    assert batched(done, (Round(4, 4, 5, 400),), {1: 0.0, 2: 0.2}).stops == ((1, None), (2, None), (3, None), (4, None))


def test_a_shared_pass_is_as_wide_as_the_longest_proposal_in_it(done: Replay) -> None:
    """Of two requests, each with 4 drafts in half of its rounds, three passes of four verify 4."""
    rounds = (Round(4, 1, 2, 400), Round(0, 0, 1, 400))
    found = batched(done, rounds, {1: 0.5, 2: 0.5, 4: 0.5})
    costs = [paces[3].cost for _, paces in found.by_batch]
    assert costs == pytest.approx([1.1 + 0.5 * 2, 1.1 + 0.75 * 2, 1.1 + (1 - 1 / 16) * 2])


def test_nothing_is_said_of_batches_that_were_not_priced(done: Replay) -> None:
    found = even(done)["good"]
    assert (found.batch_context, found.by_batch, found.stops) == (None, (), ())


def test_paying_again_in_a_larger_batch_is_paying() -> None:
    pace = {True: Pace(1, 2.0, 1.0), False: Pace(1, 1.0, 2.0)}
    for pays, stop in (((True, False, True), None), ((True, False, False), 2), ((False, False, False), 1)):
        assert stops([(n, [pace[p]]) for n, p in zip((1, 2, 4), pays, strict=True)]) == ((1, stop),)
