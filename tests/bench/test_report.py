from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dlite.bench.report import build, overall, provenance, read_json, reason_not_shown, rows_of, write_json, write_text
from dlite.bench.run import BenchResult
from dlite.errors import DataError


def test_a_report_survives_the_file(result: BenchResult, tmp_path: Path) -> None:
    report = build(result, argv=["dlite", "bench"], conditions={"dtype": "fp32"})
    path = tmp_path / "new" / "report.json"
    write_json(report, path)
    assert read_json(path) == report
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]
    lines = path.read_text().splitlines()
    assert sum(line.startswith('{"call"') for line in lines) == len(result.trials)


def test_a_report_says_what_made_it(result: BenchResult) -> None:
    report = build(result, argv=["dlite", "bench", "--n", "3"])
    assert (report["format"], report["version"], report["settings"]["seed"]) == ("dlite-bench", 1, 3)
    made = report["made"]
    assert made["argv"] == ["dlite", "bench", "--n", "3"]
    assert all(made[name] for name in ("date", "torch", "transformers", "python", "cpu", "threads", "system"))
    assert [arm["name"] for arm in report["arms"]] == ["plain", "dlite K=2", "guesser"]
    assert [arm["K"] for arm in report["arms"]] == [0, 2, 4]
    assert report["arms"][1]["checked_calls"] == 6


def test_trials_hold_ids_rounds_and_seconds(result: BenchResult) -> None:
    report = build(result, argv=[])
    for row, trial in zip(report["trials"], result.trials, strict=True):
        assert row["ids"] == list(trial.generation.token_ids)
        assert [r[:3] for r in row["rounds"]] == [
            [r.proposed, r.accepted, r.committed] for r in trial.generation.rounds
        ]
        assert row["seconds"]["verify"] == pytest.approx(trial.generation.seconds.verify, abs=1e-6)
        assert sum(r[5] for r in row["rounds"]) == pytest.approx(1e3 * trial.generation.seconds.verify, abs=0.1)


def test_a_failed_check_is_in_the_report(failed_result: BenchResult) -> None:
    report = build(failed_result, argv=[])
    arm = report["arms"][1]
    assert arm["lossless"] is False
    assert arm["differences"][0]["arm_token"] == 5
    assert reason_not_shown(report, "guesser") == "not shown: losslessness check failed"
    assert reason_not_shown(report, "plain") is None
    assert all(r["speedup"] is None for r in report["figures"] if r["arm"] == "guesser")
    arm["lossless"] = None
    assert reason_not_shown(report, "guesser") == "not shown: no losslessness check was made"


def test_rows_of_a_workload(result: BenchResult) -> None:
    report = build(result, argv=[])
    assert overall(report) == "all"
    assert [r["arm"] for r in rows_of(report, workload="long")] == ["plain", "dlite K=2", "guesser"]
    assert len(rows_of(report)) == 9
    assert {r["workload"] for r in rows_of(report, context="1-2K")} == {"long", "all"}


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, says in (
        ("{", "Expecting"),
        ("[]", "format None"),
        (json.dumps({"format": "dlite-bench", "version": 9}), "version 9. Expected 'dlite-bench', version 1"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=says):
            read_json(path)
    with pytest.raises(DataError, match="absent"):
        read_json(tmp_path / "absent.json")


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text("old", path)
    with pytest.raises(UnicodeEncodeError):
        write_text("\ud800", path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_kwargs: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert provenance([])["commit"] is None
