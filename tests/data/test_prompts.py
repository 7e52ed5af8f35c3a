"""Prompts of a file: their ids, and which answers of an agent's log are asked for (layouts: test_rows)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from dlite.data.prompts import Prompt, read_prompts

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}
TOOL = {"type": "function", "function": {"name": "look"}}


def written(folder: Path, *records: Any, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def test_a_prompt_holds_what_its_row_does(tmp_path: Path) -> None:
    rows = [{"turns": ["a", "b"]}, {"messages": [USER, ANSWER], "tools": [TOOL]}, {"prompt_ids": [1, 2]}]
    assert list(read_prompts(written(tmp_path, *rows))) == [
        Prompt("set-1", "set", turns=("a", "b")),
        Prompt("set-2", "set", (USER,), tools=(TOOL,)),
        Prompt("set-3", "set", ids=(1, 2)),
    ]


def test_ids_name_the_file_and_the_record(tmp_path: Path) -> None:
    records = [{"prompt": "a", "id": 7}, {"prompt": "b", "task_id": "x/1"}, {"prompt": "c"}]
    path = written(tmp_path, *records, name="more.v2.jsonl")
    assert [p.id for p in read_prompts(path)] == ["more-7", "more-x/1", "more-3"]


def test_compressed_prompts(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    assert [p.id for p in read_prompts(path)] == ["set-1"]


def trace(turns: int) -> dict[str, Any]:
    """An agent's log: each message is ten characters."""
    messages = [{"role": "system", "content": "s" * 10}, {"role": "user", "content": "u" * 10}]
    for i in range(turns):
        messages += [{"role": "assistant", "content": f"{i:010d}"}, {"role": "tool", "content": "t" * 10}]
    return {"instance_id": "repo-1", "messages": messages, "tools": [TOOL]}


def test_calls_of_a_trace_are_the_histories_before_assistant_turns(tmp_path: Path) -> None:
    record = trace(9)
    path = written(tmp_path, record)
    prompts = list(read_prompts(path, calls_per_trace=4))
    assert len({p.id for p in prompts}) == 4
    for prompt in prompts:
        at = int(prompt.id.removeprefix("set-repo-1-"))
        assert record["messages"][at]["role"] == "assistant"
        history = tuple(record["messages"][:at])
        assert prompt == Prompt(prompt.id, "set", history, tools=(TOOL,), trace="set-repo-1")
    assert list(read_prompts(path, calls_per_trace=4)) == prompts
    others = [tuple(p.id for p in read_prompts(path, calls_per_trace=4, seed=seed)) for seed in range(5)]
    assert len(set(others)) > 1


def test_long_histories_of_a_trace_are_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, trace(9))
    short = list(read_prompts(path, calls_per_trace=99, max_chars=60))
    assert [len(p.messages) for p in short] == [2, 4, 6]
    assert len(list(read_prompts(path, calls_per_trace=99))) == 9
    assert list(read_prompts(path, max_chars=5)) == []
