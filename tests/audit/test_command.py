from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.audit.command import AuditSettings, audit_server, audit_traces, summary, tie_gap
from dlite.audit.replay import ReplaySettings
from dlite.audit.report import Judging, read_json
from dlite.errors import ConfigError, DataError

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


def figures_of(report: dict[str, Any]) -> str:
    """A report as text, without times and what follows from them."""
    timed = ("made", "costs", "break_even", "advice", "seconds", "round_cost", "speedup", "call_ratio")

    def bare(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                k: [r[:4] for r in v] if k == "rounds" and isinstance(v, list) else bare(v)
                for k, v in value.items()
                if k not in timed
            }
        return [bare(one) for one in value] if isinstance(value, list) else value

    return json.dumps(bare(report), sort_keys=True)


def test_the_same_figures_again_from_the_same_log(target: Any, tmp_path: Path) -> None:
    """The second run finds the report of the first in its folder and writes over it."""
    log = write(tmp_path, *({"instance_id": n, "messages": list(agent_trace(n, 5).messages)} for n in "abc"))
    first, second = (run(target, [log], tmp_path / "out", max_calls=6, concurrency=2) for _ in range(2))
    assert figures_of(first) == figures_of(second)
    assert first["trials"][0]["seconds"] != second["trials"][0]["seconds"]
    assert [len(one["by_batch"]) for one in first["break_even"]] == [2, 2]


def test_a_folder_that_cannot_take_the_report(target: Any, tmp_path: Path) -> None:
    """Before anything is measured."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="file is a file. Expected a folder for the report"):
        run(target, ["nowhere"], tmp_path / "file" / "out")
    (tmp_path / "report.json").write_text('{\n "format": "dlite-bench",\n "version": 1\n}')
    with pytest.raises(ConfigError, match="holds the report of something else"):
        run(target, ["nowhere"], tmp_path)
    with pytest.raises(ConfigError, match="holds the report of something else"):
        audit_server(tmp_path / "nowhere", tmp_path, Judging())


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
