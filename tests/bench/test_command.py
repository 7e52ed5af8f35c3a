"""From files to a report on disk, also when somebody presses Ctrl-C on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlite.bench import command
from dlite.bench.report import read_json
from dlite.drafters.none import NoDrafter
from dlite.errors import ConfigError
from dlite.sampling import SamplingParams
from tests.data.support import chatty_target


def measure(folder: Path, monkeypatch: pytest.MonkeyPatch, *, press_at: int) -> Path:
    """Five calls with a drafter that knows nothing; Ctrl-C comes with its request number ``press_at``."""
    path, out = folder / "set.jsonl", folder / "out"
    path.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in ("a", "e", "i", "t", "s")))
    target = chatty_target(seed=1, context_length=200)
    seen = 0

    class Pressed(NoDrafter):
        def new_memory(self, rows: int) -> None:
            nonlocal seen
            seen += 1
            if seen == press_at:
                raise KeyboardInterrupt

    def load_drafter(*_: Any) -> NoDrafter:
        return Pressed()

    monkeypatch.setattr(command, "load_drafter", load_drafter)
    sampling = SamplingParams()
    same = command.bench_files(
        target, [str(path)], ["nothing"], [], out, calls=9, max_new_tokens=12, min_context=0, max_context=None,
        sampling=sampling, include_loops=True, seed=0, argv=["dlite", "bench"],
    )  # fmt: skip
    assert same
    return out


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = measure(tmp_path, monkeypatch, press_at=0)
    report = read_json(out / "report.json")
    assert len(report["trials"]) == 10
    assert report["conditions"] == {"calls": "9 a workload, seed 0"}
    assert {f.name for f in out.iterdir()} == {"report.json", "report.md", "report.html"}


def test_after_ctrl_c_the_report_holds_what_was_measured_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, monkeypatch, press_at=4)  # one request warms up, two are measured
    report = read_json(tmp_path / "out" / "report.json")
    assert len(report["trials"]) == 4
    assert report["conditions"]["interrupted"] == "after 2 of 5 calls"
    for name in ("report.md", "report.html"):
        assert "after 2 of 5 calls" in (tmp_path / "out" / name).read_text()


def test_adaptive_is_said_behind_a_drafters_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = chatty_target(seed=1, context_length=200)
    assert command.split_adaptive("hybrid:shipped+adaptive") == ("hybrid:shipped", True)
    (tmp_path / "run+adaptive").mkdir()
    assert command.split_adaptive("run+adaptive") == ("run+adaptive", False)
    arms = command._arms(target, ["ngram", "ngram+adaptive"], [2])
    assert [(arm.name, arm.control is not None) for arm in arms] == [("ngram K=2", False), ("ngram adaptive K=2", True)]
    with pytest.raises(ConfigError, match="none\\+adaptive has no drafts to adapt"):
        command._arms(target, ["none+adaptive"], [])
    (tmp_path / "set.jsonl").write_text(json.dumps({"prompt": "a e i a e i"}) + "\n")
    command.bench_files(
        target, ["set.jsonl"], ["ngram+adaptive"], [], tmp_path / "out", calls=1, max_new_tokens=40, min_context=0,
        max_context=None, sampling=SamplingParams(), include_loops=True, seed=0, argv=["dlite", "bench"],
    )  # fmt: skip
    arm = read_json(tmp_path / "out" / "report.json")["arms"][1]
    assert (arm["adaptive"], arm["lossless"]) == (True, True)
    assert 0 < arm["drafts_per_round"] <= 7
    assert 0 <= arm["share_of_rounds_off"] < 1
