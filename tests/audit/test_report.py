from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlite.audit.marks import unrolled
from dlite.audit.replay import Replay
from dlite.audit.report import Judging, Reading, read_json, replay_report, server_report, write_json
from dlite.audit.server import Count
from dlite.errors import DataError
from dlite.traces.skipped import Skipped

from .support import costs_of, make_replay

Report = dict[str, Any]


def test_the_file_holds_what_was_built(report: Report, tmp_path: Path) -> None:
    write_json(report, tmp_path / "r.json")
    assert read_json(tmp_path / "r.json") == report
    assert json.loads(json.dumps(report)) == report


def test_every_token_says_who_gave_it_where_and_what_it_is(report: Report, done: Replay) -> None:
    for record, trial in zip(report["trials"], done.trials, strict=True):
        assert (record["turn"], record["arm"], record["reuse"]) == (trial.turn, trial.arm, trial.reuse)
        assert [r[2] for r in record["rounds"]] == [r.committed for r in trial.generation.rounds]
        assert (record["context"], record["tau"]) == (trial.generation.prompt_tokens, trial.generation.tau)
        assert ("ids" in record) == (trial.reuse == "on")
        if trial.reuse == "on":
            length = len(trial.generation.token_ids)
            assert len(record["ids"]) == len(record["positions"]) == record["tokens"] == length
            for key in ("spans", "copied", "sources"):
                assert len(list(unrolled(record[key]))) == length
            gave = zip(record["positions"], unrolled(record["sources"]), strict=True)
            assert all((source == "target") == (place == 0) for place, source in gave)


def test_reuse_says_what_it_saved(report: Report, done: Replay) -> None:
    rows = {(r["arm"], r["reuse"]): r for r in report["reuse"]}
    assert set(rows) == {(arm.name, reuse) for arm in done.arms for reuse in ("on", "off")}
    assert rows["good", "on"]["reused_tokens"] > 0 == rows["good", "off"]["reused_tokens"]
    assert rows["good", "on"]["prompt_tokens"] == sum(len(turn.ids) for turn in done.turns)


def test_the_same_figures_again_except_for_times(target: Any, report: Report) -> None:
    again = make_replay(target)
    judging = Judging(include_loops=True)
    other = replay_report(target, Reading((), {}, Skipped()), again, costs_of(again), [], judging)
    for left, right in zip(report["figures"], other["figures"], strict=True):
        for key in ("by", "group", "arm", "calls", "tokens", "rounds", "tau", "acceptance"):
            assert left[key] == right[key]
    for key in ("spans", "sources", "samples"):
        assert report[key] == other[key]
    assert report["turns"] == other["turns"]


def test_what_is_no_report_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for text, words in (
        ("{", "Expecting property name"),
        ("[]", "format None"),
        ('{"format": "dlite-bench", "version": 1}', "'dlite-bench'"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            read_json(path)
    with pytest.raises(DataError, match="No such file"):
        read_json(tmp_path / "none")


def test_a_server_has_a_report_of_the_same_form(report: Report, tmp_path: Path) -> None:
    made = server_report("logs/log", [Count(9, 5, 20, 8, (5, 3)), Count(2000, 5, 20, 2, (2, 0))], Skipped(), Judging())
    assert set(report) == set(made)
    write_json(made, tmp_path / "r.json")
    assert read_json(tmp_path / "r.json") == made
    assert made["reading"]["sources"] == ["log"]


def test_loops_only_is_still_a_report(target: Any, done: Replay) -> None:
    looping = replace(done, looping=frozenset(turn.id for turn in done.turns))
    made = replay_report(target, Reading((), {}, Skipped()), looping, [], [], Judging())
    assert made["figures"] == []
    assert made["advice"]["headline"].startswith("There is nothing to judge")
