"""Every layout is told by what a record holds, and no file, however broken, is a traceback."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dlite.traces.read import AGAIN, UNKNOWN, read_traces
from dlite.traces.skipped import Skipped

ASK, ANSWER = {"role": "user", "content": "what?"}, {"role": "assistant", "content": "this."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": '{"a": 1}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "seen"}
RECORDS: dict[str, dict[str, Any]] = {
    "chat log": {
        "request": {"messages": [ASK], "tools": [{"name": "look"}]},
        "response": {"choices": [{"message": ANSWER}]},
    },
    "ShareGPT": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "mini-swe-agent": {"instance_id": "x", "messages": [ASK, ANSWER, ASK, ANSWER]},
    "SWE-agent": {"trajectory": [], "history": [ASK, CALL, RESULT], "info": {}},
    "tau-bench": {"task_id": 1, "reward": 0.0, "traj": [ASK, CALL, RESULT, ANSWER]},
    "LoCoMo": {"conversation": {"session_1": [{"speaker": "a", "text": "b"}]}, "qa": [{"question": "c"}]},
    "QMSum": {"meeting_transcripts": [{"speaker": "a", "content": "b"}], "general_query_list": [{"query": "c"}]},
    "LongBench v2": {"context": "a", "question": "b", **{f"choice_{c}": c for c in "ABCD"}},
}


def write(folder: Path, *lines: str) -> Path:
    path = folder / "log"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("layout", RECORDS)
def test_the_layout_is_told_by_content(tmp_path: Path, layout: str) -> None:
    skipped = Skipped()
    traces = list(read_traces(write(tmp_path, json.dumps(RECORDS[layout])), skipped))
    assert [trace.layout for trace in traces] == [layout]
    assert skipped.total == 0


def test_one_file_may_mix_them_and_says_what_it_left_out(tmp_path: Path) -> None:
    lines = [json.dumps(record) for record in RECORDS.values()]
    extra = [lines[2], '{"weather": "fine"}', "{broken", '{"messages": [{"role": "user", "content": 3}]}']
    skipped = Skipped()
    traces = list(read_traces(write(tmp_path, *lines, *extra), skipped))
    assert {trace.layout for trace in traces} == set(RECORDS)
    assert skipped.counts == {AGAIN: 1, UNKNOWN: 1, "not JSON in UTF-8": 1, "a message whose content is not text": 1}
    assert skipped.places[AGAIN] == ["log, line 9"]


def test_a_fuzzer_finds_no_traceback(tmp_path: Path) -> None:
    """Values replaced, removed, nested and cut in every layout; what is left is read or counted."""
    dice = random.Random(0)
    lines = [_damaged(json.dumps(_mutated(record, dice)), dice) for _ in range(60) for record in RECORDS.values()]
    skipped = Skipped()
    traces = list(read_traces(write(tmp_path, *lines), skipped))
    assert traces
    assert skipped.total > 20
    for trace in traces:
        assert trace.turns
        assert json.dumps([trace.messages, trace.tools]).encode()


ODD: list[Any] = [
    None,
    0,
    -1,
    1e400,
    True,
    "",
    "a" * 999,
    "\ud800",
    "\u2028",
    [],
    {},
    [None],
    {"role": None},
    [[[]]],
    {"content": {}},
]


def _mutated(value: Any, dice: random.Random) -> Any:
    if dice.random() < 0.06:
        return dice.choice(ODD)
    if isinstance(value, dict):
        return {
            (k if dice.random() > 0.03 else k[:2]): _mutated(v, dice) for k, v in value.items() if dice.random() > 0.03
        }
    if isinstance(value, list):
        mutated = [_mutated(v, dice) for v in value if dice.random() > 0.03]
        return mutated * dice.choice([1, 1, 1, 1, 3])
    return value


def _damaged(line: str, dice: random.Random) -> str:
    if dice.random() < 0.1:
        at = dice.randrange(len(line))
        return line[:at] + dice.choice(["", "}", "\\", '"', "\x00"]) + line[at + dice.randrange(9) :]
    return line
