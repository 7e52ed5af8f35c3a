"""Which drafter is kept: the one that commits more tokens a round on the same calls, if the text stays the target's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlite.adapt.compare import AFTER, BEFORE, verdict
from dlite.audit.replay import Replay, ReplaySettings, replay
from dlite.bench.check import Check, Difference
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.none import NoDrafter
from dlite.types import tau
from tests.audit.support import Guesser, agent_trace, make_turns, talker


@pytest.fixture(scope="module")
def done() -> Replay:
    """The new one guesses better."""
    target = talker()
    turns = make_turns(target, [agent_trace(name, 6, 40) for name in ("one", "two", "three")])
    arms = [
        Arm(PLAIN, NoDrafter()),
        Arm(BEFORE, Guesser(target, right=0.2)),
        Arm(AFTER, Guesser(target, right=0.8)),
    ]
    return replay(target, arms, turns, ReplaySettings(16, "on"))


def swapped(done: Replay) -> Replay:
    names = {BEFORE: AFTER, AFTER: BEFORE, PLAIN: PLAIN}
    return replace(done, trials=tuple(replace(t, arm=names[t.arm]) for t in done.trials))


def test_the_better_is_kept_with_its_gain(done: Replay) -> None:
    found = verdict(done, include_loops=True, seed=0)
    taus = [tau(r for t in done.trials if t.arm == arm for r in t.generation.rounds) for arm in (BEFORE, AFTER)]
    assert found.kept == AFTER
    assert found.gain is not None
    assert found.gain.value == pytest.approx(taus[1] - taus[0])
    assert found.gain.low is not None
    assert 0 < found.gain.low <= found.gain.value
    back = verdict(swapped(done), include_loops=True, seed=0)
    assert back.kept == BEFORE
    assert back.gain is not None
    assert back.gain.value == pytest.approx(-found.gain.value)


def test_equal_drafters_leave_things_as_they_were(done: Replay) -> None:
    same = tuple(replace(t, generation=g.generation) if t.arm == AFTER else t for t, g in zip(
        done.trials, [next(o for o in done.trials if (o.turn, o.arm) == (t.turn, BEFORE)) for t in done.trials], strict=True
    ))  # fmt: skip
    assert verdict(replace(done, trials=same), include_loops=True, seed=0).kept == BEFORE


def test_a_new_drafter_that_changes_the_text_is_not_kept(done: Replay) -> None:
    bad = Check(done.turns[0].id, AFTER, Difference(3, 1, 2, 1.0, 0.0, 1.0, False))
    assert verdict(replace(done, checks=(*done.checks, bad)), include_loops=True, seed=0).kept == BEFORE


def test_where_every_answer_loops_nothing_is_judged(done: Replay) -> None:
    all_loop = replace(done, looping=frozenset(turn.id for turn in done.turns))
    found = verdict(all_loop, include_loops=False, seed=0)
    assert (found.kept, found.gain) == (BEFORE, None)
