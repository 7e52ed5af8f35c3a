from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlite.bench.run import PLAIN, Arm, BenchResult, BenchSettings, Interrupted, rotated, run
from dlite.bench.suites import Call
from dlite.engine.stats import is_looping
from dlite.errors import ConfigError, DataError
from dlite.sampling import SamplingParams
from dlite.target.toy import ToyTarget

from .support import Guesser, LyingTarget, make_calls


def test_arms_take_turns_and_plain_is_always_there(target: ToyTarget, arms: list[Arm]) -> None:
    result = run(target, arms, make_calls("short", 5))
    names = [PLAIN, *(arm.name for arm in arms)]
    order = [trial.arm for trial in result.trials]
    assert [order[i : i + 4] for i in range(0, 20, 4)] == [names[i % 4 :] + names[: i % 4] for i in range(5)]
    assert [arm.name for arm in rotated(result.arms, 6)] == names[2:] + names[:2]


def test_every_arm_says_what_plain_says(target: ToyTarget, arms: list[Arm]) -> None:
    result = run(target, arms, make_calls("short", 4))
    assert len(result.checks) == 12
    assert all(check.difference is None for check in result.checks)
    assert all(result.lossless(arm.name) for arm in result.arms)
    by_call: dict[str, set[tuple[int, ...]]] = {}
    for trial in result.trials:
        by_call.setdefault(trial.call, set()).add(trial.generation.token_ids)
    assert all(len(texts) == 1 for texts in by_call.values())
    assert {len(t.generation.rounds) for t in result.trials if t.arm == PLAIN} == {23}
    assert max(r.proposed for t in result.trials if t.arm == "dlite K=2" for r in t.generation.rounds) == 2


def test_warm_up_is_dropped(target: ToyTarget) -> None:
    asked: list[int] = []

    class Spy(Guesser):
        def propose(self, view: Any, counts: Sequence[int], chooser: Any) -> Any:
            asked.append(len(view.tokens[0]))
            return super().propose(view, counts, chooser)

    calls = make_calls("short", 2)
    result = run(target, [Arm("spy", Spy(target))], calls, settings=BenchSettings(warmup_tokens=5))
    counted = sum(r.proposed > 0 for t in result.trials if t.arm == "spy" for r in t.generation.rounds)
    assert len(asked) > counted
    assert max(asked[: len(asked) - counted]) < len(calls[0].ids) + 5


def test_a_lie_in_verification_is_found(failed_result: BenchResult) -> None:
    assert failed_result.lossless("guesser") is False
    (first, *_) = [check.difference for check in failed_result.checks if check.difference]
    assert first is not None
    assert first.arm_token == 5
    assert first.gap is not None
    assert first.gap > 1e-4


def test_loops_are_judged_on_plain_output(arms: list[Arm]) -> None:
    target = ToyTarget(sharpness=9.0, stop=False)
    calls = make_calls("short", 3, max_new_tokens=110)
    result = run(target, [Arm("guesser", Guesser(target))], calls)
    looping = {t.call: t.looping for t in result.trials}
    assert looping == {t.call: is_looping(t.generation.token_ids) for t in result.trials if t.arm == PLAIN}


def words(tokenizer: Any, messages: Any, _tools: Any) -> list[int]:
    return [1, *tokenizer.encode("".join(m["content"] for m in messages))]


def test_a_turn_follows_the_plain_answer_to_the_one_before(target: ToyTarget) -> None:
    seen: list[list[Any]] = []

    def render(tokenizer: Any, messages: Any, tools: Any) -> list[int]:
        seen.append(list(messages))
        return words(tokenizer, messages, tools)

    user = [{"role": "user", "content": text} for text in ("abc", "def")]
    first = Call("c", "chat", "c", (user[0],), max_new_tokens=6)
    second = Call("c.2", "chat", "c", (user[1],), max_new_tokens=6, follows="c")
    result = run(target, [Arm("guesser", Guesser(target))], [first, second], render=render)
    answer = next(t.generation.text for t in result.trials if t.call == "c" and t.arm == PLAIN)
    assert seen[-1] == [user[0], {"role": "assistant", "content": answer}, user[1]]
    assert len(answer) == 6


def test_calls_too_long_are_skipped_with_their_followers(target: ToyTarget) -> None:
    user = {"role": "user", "content": "a" * 1600}
    long = Call("long", "chat", "long", (user,), max_new_tokens=4)
    after = replace(long, id="after", follows="long")
    result = run(target, [], [*make_calls("short", 1), long, after], render=words)
    assert [call for call, _ in result.skipped] == ["long", "after"]
    assert {t.call for t in result.trials} == {"short:0"}
    with pytest.raises(DataError, match="none of 1 calls could be run"):
        run(target, [], [long], render=words)


def test_sampled_runs_are_checked_on_greedy_calls(target: ToyTarget, lying_target: LyingTarget) -> None:
    sampled = BenchSettings(sampling=SamplingParams(temperature=1.0, seed=5), greedy_checks=2)
    good = run(target, [Arm("guesser", Guesser(target))], make_calls("short", 3), settings=sampled)
    assert [(c.call, c.arm) for c in good.checks] == [("short:0", "guesser"), ("short:1", "guesser")]
    assert good.lossless("guesser") is True
    texts = [t.generation.token_ids for t in good.trials if t.arm == PLAIN]
    greedy = run(target, [], make_calls("short", 3))
    assert texts != [t.generation.token_ids for t in greedy.trials]
    lying_target.off = 100.0
    bad = run(lying_target, [Arm("guesser", Guesser(lying_target))], make_calls("short", 3), settings=sampled)
    assert bad.lossless("guesser") is False
    unchecked = replace(sampled, greedy_checks=0)
    none = run(target, [Arm("guesser", Guesser(target))], make_calls("short", 1), settings=unchecked)
    assert none.lossless("guesser") is None


class Stopped(Guesser):
    """A drafter during whose round number ``left`` somebody presses Ctrl-C."""

    left = 0

    def propose(self, view: Any, counts: Sequence[int], chooser: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().propose(view, counts, chooser)


def test_an_interrupted_run_hands_over_the_calls_it_has_measured(target: ToyTarget) -> None:
    """Once an hour of measuring was lost with the one call under way."""
    drafter = Stopped(target, right=1.0)
    arms, calls = [Arm("guesser", drafter)], make_calls("short", 6)
    whole = run(target, arms, calls)
    drafter.left = 25
    with pytest.raises(Interrupted) as stop:
        run(target, arms, calls)
    result = stop.value.result
    done = len({trial.call for trial in result.trials})
    assert 0 < done < 6
    assert [(t.call, t.arm, t.generation.token_ids) for t in result.trials] == [
        (t.call, t.arm, t.generation.token_ids) for t in whole.trials[: 2 * done]
    ]
    assert result.checks == whole.checks[:done]
    assert result.lossless("guesser") is True


def test_ctrl_c_before_anything_was_measured_is_only_that(target: ToyTarget) -> None:
    drafter = Stopped(target)
    drafter.left = 1
    with pytest.raises(KeyboardInterrupt) as stop:
        run(target, [Arm("guesser", drafter)], make_calls("short", 2))
    assert stop.type is KeyboardInterrupt


def test_unusable_arms_are_named(target: ToyTarget) -> None:
    calls = make_calls("short", 1)
    for arms, says in (
        ([Arm("a", Guesser(target)), Arm("a", Guesser(target), 2)], "2 arms named 'a'"),
        ([Arm(PLAIN, Guesser(target))], "'plain'"),
        ([Arm("a", Guesser(target), 5)], "K = 5.*1 to 4"),
        ([Arm("a", Guesser(target), 0)], "K = 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            run(target, arms, calls)


def test_unusable_calls_are_named(target: ToyTarget) -> None:
    (call,) = make_calls("short", 1)
    for calls, says in (
        ([], "no calls"),
        ([call, call], "two calls are named 'short:0'"),
        ([replace(call, follows="x")], "follows x"),
        ([replace(call, ids=())], "cannot be rendered"),
        ([replace(call, max_new_tokens=0)], "asks for 0"),
    ):
        with pytest.raises(DataError, match=says):
            run(target, [], calls)


def test_progress_goes_to_standard_error(target: ToyTarget, capsys: pytest.CaptureFixture[str]) -> None:
    run(target, [], make_calls("short", 1), progress=True)
    assert capsys.readouterr().out == ""
