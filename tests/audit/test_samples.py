from __future__ import annotations

from dataclasses import replace
from typing import Any

from dlite.audit.replay import Replay
from dlite.audit.samples import samples
from dlite.types import tau

Report = dict[str, Any]


def test_samples_are_the_answers_token_by_token(report: Report) -> None:
    trials = {(t["turn"], t["arm"]): t for t in report["trials"] if t["reuse"] == "on"}
    assert len(report["samples"]) == len({sample["turn"] for sample in report["samples"]}) == 6
    for sample in report["samples"]:
        assert [answer["arm"] for answer in sample["answers"]] == ["good", "poor K=2"]
        for answer in sample["answers"]:
            trial = trials[sample["turn"], answer["arm"]]
            assert [position for _, position, _ in answer["tokens"]] == trial["positions"]


def test_two_typical_ones_then_short_to_long(report: Report, done: Replay) -> None:
    kinds = [sample["typical"] for sample in report["samples"]]
    assert kinds == [True, True, False, False, False, False]
    contexts = [sample["context"] for sample in report["samples"][2:]]
    assert contexts == sorted(contexts)
    mine = {t.turn: t.generation.rounds for t in done.trials if (t.arm, t.reuse) == ("good", "on")}
    whole = tau(r for rounds in mine.values() for r in rounds)
    odd = {turn: abs(tau(rounds) - whole) for turn, rounds in mine.items()}
    assert {sample["turn"] for sample in report["samples"][:2]} == set(sorted(odd, key=lambda turn: odd[turn])[:2])


def test_the_arm_that_commits_most_is_shown(report: Report) -> None:
    assert {sample["shown"] for sample in report["samples"]} == {"good"}


def test_no_sample_of_an_arm_that_is_not_the_targets_text_or_of_loops(done: Replay) -> None:
    marks = {(t.turn, t.arm): [] for t in done.trials}
    unchecked = replace(done, checks=tuple(c for c in done.checks if c.arm != "good"))
    assert [a["arm"] for a in samples(unchecked, marks, include_loops=True)[0]["answers"]] == ["poor K=2"]
    looping = replace(done, looping=frozenset(turn.id for turn in done.turns[1:]))
    assert [s["turn"] for s in samples(looping, marks, include_loops=False)] == [done.turns[0].id]
    assert samples(replace(done, checks=()), marks, include_loops=True) == []
