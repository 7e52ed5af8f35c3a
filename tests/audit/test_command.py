from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.audit.command import AuditSettings, audit_traces, summary, tie_gap
from dlite.audit.replay import ReplaySettings
from dlite.audit.report import Judging, read_json
from dlite.errors import DataError

from .support import agent_trace, talker


def write(folder: Path, *records: Any) -> str:
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def run(target: Any, sources: list[str], out: Path, **settings: Any) -> dict[str, Any]:
    replaying, judging = ReplaySettings(max_new_tokens=16), Judging(include_loops=True)
    return audit_traces(target, sources, ["ngram", "suffix"], [3], out, AuditSettings(**settings), replaying, judging)


def test_from_logs_to_a_page_with_drafters_that_remember(target: Any, tmp_path: Path) -> None:
    agents = [{"instance_id": n, "messages": list(agent_trace(n, 4).messages)} for n in "ab"]
    chat = {"conversations": [{"from": "human", "value": "what?"}, {"from": "gpt", "value": "this."}]}
    report = run(target, [write(tmp_path, *agents, chat)], tmp_path / "out", max_calls=9, concurrency=3)
    assert report == read_json(tmp_path / "out" / "report.json")
    assert report["reading"]["layouts"] == {"mini-swe-agent": 2, "ShareGPT": 1}
    assert len(report["turns"]) == 9
    assert [(arm["name"], arm["lossless"]) for arm in report["arms"]] == [
        ("plain", True),
        ("ngram K=3", True),
        ("suffix K=3", True),
    ]
    assert {row["requests"] for row in report["memory"]} == {3}
    assert [one["arm"] for one in report["break_even"]] == ["ngram K=3", "suffix K=3"]
    said = summary(report, tmp_path / "out")
    assert report["advice"]["headline"] in said
    assert said.endswith("report.html")


def test_nothing_to_replay_says_what_was_found(target: Any, tmp_path: Path) -> None:
    sources = [write(tmp_path, {"weather": "fine"}, {"messages": [{"role": "user", "content": 3}]})]
    with pytest.raises(
        DataError, match=r"no turn of .*: 1 a layout that is not known \(log.jsonl, line 1\), 1 a message"
    ):
        run(target, sources, tmp_path)


def test_near_ties_are_wider_in_sixteen_bits() -> None:
    target = talker()
    assert tie_gap(target) == 1e-4
    target.dtype = torch.bfloat16
    assert tie_gap(target) == 0.5
