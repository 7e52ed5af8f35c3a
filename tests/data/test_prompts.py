"""Every layout of prompt files, and agent traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dlite.data.prompts import Prompt, read_prompts
from dlite.errors import DataError

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}
TOOL = {"type": "function", "function": {"name": "look"}}


def written(folder: Path, *records: Any, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


def one(folder: Path, record: dict[str, Any]) -> Prompt:
    (found,) = read_prompts(written(folder, record))
    return found


@pytest.mark.parametrize(
    ("record", "messages", "turns"),
    [
        ({"turns": ["a", "b"]}, (), ("a", "b")),
        ({"messages": [USER]}, (USER,), ()),
        ({"messages": [USER, ANSWER, USER]}, (USER, ANSWER, USER), ()),
        ({"messages": [USER, ANSWER, ANSWER]}, (USER,), ()),
        ({"prompt": "a"}, (), ("a",)),
        ({"question": "a", "answer": "b"}, (), ("a",)),
        ({"problem": "a"}, (), ("a",)),
        ({"text": "a"}, (), ("a",)),
        ({"instruction": "a"}, (), ("a",)),
        ({"instruction": "a", "input": "b", "output": "c"}, (), ("a\n\nb",)),
        ({"instruction": "a", "input": ""}, (), ("a",)),
        ({"prompt": "one\u2028two"}, (), ("one\u2028two",)),
        ({"turns": [], "messages": [], "prompt": "a"}, (), ("a",)),
        ({"messages": [ANSWER], "prompt": "a"}, (), ("a",)),
    ],
)
def test_layouts(tmp_path: Path, record: dict[str, Any], messages: tuple[Any, ...], turns: tuple[str, ...]) -> None:
    assert one(tmp_path, record) == Prompt("set-1", "set", messages, turns)


def test_sharegpt(tmp_path: Path) -> None:
    said = [("system", "s"), ("human", "a"), ("gpt", "b"), ("tool", "t"), ("human", "c"), ("gpt", "d")]
    record = {"conversations": [{"from": who, "value": what} for who, what in said]}
    roles = ["system", "user", "assistant", "tool", "user"]
    wanted = tuple({"role": r, "content": what} for r, (_, what) in zip(roles, said, strict=False))
    assert one(tmp_path, record).messages == wanted


def test_tools_come_along(tmp_path: Path) -> None:
    assert one(tmp_path, {"messages": [USER], "tools": [TOOL]}).tools == (TOOL,)


def test_ids_name_the_file_and_the_record(tmp_path: Path) -> None:
    records = [{"prompt": "a", "id": 7}, {"prompt": "b", "task_id": "x/1"}, {"prompt": "c"}]
    path = written(tmp_path, *records, name="more.v2.jsonl")
    assert [p.id for p in read_prompts(path)] == ["more-7", "more-x/1", "more-3"]


def test_compressed_prompts(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    assert [p.id for p in read_prompts(path)] == ["set-1"]


@pytest.mark.parametrize(
    "record",
    [
        {"answer": "a", "score": 1},
        {},
        {"prompt": "  "},
        {"messages": [ANSWER]},
        {"turns": [1, 2]},
        {"messages": ["hi"]},
        {"conversations": ["hi"]},
        {"instance_id": "i", "messages": ["hi"]},
        {"prompt": "a", "tools": "look"},
    ],
)
def test_a_record_without_a_prompt_is_named(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"set\.jsonl, line 2: "):
        list(read_prompts(written(tmp_path, {"prompt": "a"}, record)))


def test_the_complaint_lists_the_keys(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no prompt found among the keys answer, score. Expected 'turns', 'messages'"):
        list(read_prompts(written(tmp_path, {"score": 1, "answer": "a"})))


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
        assert prompt == Prompt(prompt.id, "set", tuple(record["messages"][:at]), (), (TOOL,))
    assert list(read_prompts(path, calls_per_trace=4)) == prompts
    others = [tuple(p.id for p in read_prompts(path, calls_per_trace=4, seed=seed)) for seed in range(5)]
    assert len(set(others)) > 1


def test_long_histories_of_a_trace_are_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path, trace(9))
    short = list(read_prompts(path, calls_per_trace=99, max_chars=60))
    assert [len(p.messages) for p in short] == [2, 4, 6]
    assert len(list(read_prompts(path, calls_per_trace=99))) == 9
    assert list(read_prompts(path, max_chars=5)) == []
