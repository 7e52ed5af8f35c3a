"""Turns are answered as a server would: the same text with and without reuse, and only what is new is computed."""

from __future__ import annotations

from typing import Any

import pytest

from dlite.audit.replay import Replay, ReplaySettings, replay
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.none import NoDrafter
from dlite.sampling import SamplingParams

from .support import Guesser, LyingTarget, agent_trace, make_replay, make_turns, talker


def trials(done: Replay, arm: str, reuse: str) -> list[Any]:
    return [t for t in done.trials if (t.arm, t.reuse) == (arm, reuse)]


def test_every_turn_with_every_arm_on_and_off(done: Replay) -> None:
    assert len(done.turns) == 9
    assert len(done.trials) == 9 * 3 * 2
    for arm in done.arms:
        for reuse in ("on", "off"):
            assert [t.turn for t in trials(done, arm.name, reuse)] == [turn.id for turn in done.turns]
            ids = [t.generation.token_ids for t in trials(done, arm.name, reuse)]
            assert ids == [t.generation.token_ids for t in trials(done, PLAIN, "off")]
        assert done.lossless(arm.name) is True
    assert not done.interrupted


def test_the_prefix_of_the_turn_before_is_not_computed_again(done: Replay) -> None:
    turns = {turn.id: turn for turn in done.turns}
    for trial in trials(done, "good", "on"):
        turn = turns[trial.turn]
        if turn.before:
            assert trial.reused >= len(turn.before) - 20  # all but the words that would open an answer
            assert trial.reused < len(turn.ids)
    assert all(trial.reused == 0 for trial in trials(done, "good", "off"))


def test_reuse_leaves_the_drafts_as_they_are(done: Replay) -> None:
    """A drafter that loses its drafts after a prefix hit would show here."""
    on, off = (
        [[(r.proposed, r.accepted) for r in t.generation.rounds] for t in trials(done, "good", k)]
        for k in ("on", "off")
    )
    assert on == off


@pytest.mark.parametrize("reuse", ["on", "off"])
def test_only_one_kind_if_asked(target: Any, reuse: Any) -> None:
    turns = make_turns(target, [agent_trace("one", 3)], 2)
    settings = ReplaySettings(max_new_tokens=8, reuse=reuse)
    done = replay(target, [Arm(PLAIN, NoDrafter()), Arm("good", Guesser(target))], turns, settings)
    assert {t.reuse for t in done.trials} == {reuse} == {settings.main}
    assert done.lossless("good") is True
    assert done.lossless(PLAIN) is True


def test_a_text_that_differs_is_not_lossless() -> None:
    target = talker(LyingTarget)
    target.off = 100.0
    done = make_replay(target, steps=2)
    assert done.lossless("good") is False
    assert done.lossless(PLAIN) is True
    assert any(check.difference for check in done.checks if check.arm == "good")


def test_sampled_texts_are_checked_greedily(target: Any) -> None:
    turns = make_turns(target, [agent_trace("one", 6)], 3)
    arms = [Arm(PLAIN, NoDrafter()), Arm("good", Guesser(target))]
    settings = ReplaySettings(max_new_tokens=8, reuse="on", sampling=SamplingParams(temperature=1.0), greedy_checks=2)
    done = replay(target, arms, turns, settings)
    assert {c.call for c in done.checks} == {turn.id for turn in turns[:2]}
    assert done.lossless("good") is True


@pytest.mark.parametrize("after", [0, 2])
def test_ctrl_c_keeps_the_turns_that_are_whole(target: Any, after: int) -> None:
    class Tired(Guesser):
        calls = 0

        def propose(self, view: Any, counts: Any, chooser: Any) -> Any:
            if len(seen) == after and len(view.tokens[0]) > 300:
                raise KeyboardInterrupt
            return super().propose(view, counts, chooser)

    seen: list[int] = []
    turns = make_turns(target, [agent_trace("one", 12, 90)], 4, 4)[1:]
    arms = [Arm(PLAIN, NoDrafter()), Arm("tired", Tired(target))]
    done = replay(target, arms, turns, ReplaySettings(max_new_tokens=8), lambda count, note: seen.append(count))
    assert done.interrupted
    assert len(done.turns) == after
    assert {t.turn for t in done.trials} == {turn.id for turn in turns[:after]}
    assert len(done.trials) == after * 4


def test_figures_come_out_the_same_again(target: Any, done: Replay) -> None:
    again = make_replay(target)
    shapes = [
        [
            (t.turn, t.arm, t.reuse, t.reused, t.generation.token_ids, [r.accepted for r in t.generation.rounds])
            for t in one.trials
        ]
        for one in (done, again)
    ]
    assert shapes[0] == shapes[1]
