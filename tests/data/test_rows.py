"""Every layout of a row, and that regeneration and benchmarks ask the same of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlite.bench.suites import load
from dlite.data.chat import Message, user
from dlite.data.prompts import read_prompts
from dlite.data.rows import Row, read_row
from dlite.errors import DataError

USER, ANSWER, SYSTEM = user("hi"), {"role": "assistant", "content": "yes?"}, {"role": "system", "content": "be"}
PARTS = {"role": "user", "content": [{"type": "text", "value": "hi"}], "loss_weight": 0.0}
TOOL = {"type": "function", "function": {"name": "look"}}
SAID = [("system", "s"), ("human", "a"), ("function_call", "{}"), ("observation", "t"), ("human", "c"), ("gpt", "d")]
SHAREGPT = [{"from": who, "value": what} for who, what in SAID]
HEARD = tuple(
    {"role": role, "content": what}
    for role, (_, what) in zip(["system", "user", "assistant", "tool", "user"], SAID, strict=False)
)
LOG = [SYSTEM, USER, ANSWER, USER, ANSWER, USER]

LAYOUTS: list[tuple[dict[str, Any], Row]] = [
    ({"turns": ["a", "b"], "reference": ["c"]}, Row(turns=("a", "b"))),
    ({"messages": [USER]}, Row(messages=(USER,))),
    ({"messages": [SYSTEM, USER, ANSWER, USER]}, Row(messages=(SYSTEM, USER, ANSWER, USER))),
    ({"messages": [USER, ANSWER, ANSWER]}, Row(messages=(USER,))),
    ({"messages": [PARTS, ANSWER]}, Row(messages=(PARTS,))),
    ({"messages": [USER], "tools": [TOOL]}, Row(messages=(USER,), tools=(TOOL,))),
    ({"messages": [USER], "tools": None}, Row(messages=(USER,))),
    ({"conversations": SHAREGPT, "tools": json.dumps([TOOL])}, Row(messages=HEARD, tools=(TOOL,))),
    ({"conversations": SHAREGPT, "tools": ""}, Row(messages=HEARD)),
    ({"conversations": [USER, ANSWER]}, Row(messages=(USER,))),
    ({"prompt_ids": [1, 2, 3], "response_ids": [4]}, Row(ids=(1, 2, 3))),
    ({"prompt": "a"}, Row(turns=("a",))),
    ({"prompt": "a", "tools": [TOOL]}, Row(turns=("a",), tools=(TOOL,))),
    ({"question": "a", "answer": "b"}, Row(turns=("a",))),
    ({"problem": "a"}, Row(turns=("a",))),
    ({"text": "a", "task_id": 1}, Row(turns=("a",))),
    ({"instruction": "a"}, Row(turns=("a",))),
    ({"instruction": "a", "input": "b", "output": "c"}, Row(turns=("a\n\nb",))),
    ({"instruction": "a", "input": ""}, Row(turns=("a",))),
    ({"question": "a", "input": "b"}, Row(turns=("a",))),
    ({"prompt": "one\u2028two"}, Row(turns=("one\u2028two",))),
    ({"turns": [], "messages": None, "conversations": [], "prompt": "a"}, Row(turns=("a",))),
    ({"instance_id": "i", "messages": LOG}, Row(messages=tuple(LOG), answers=(2, 4))),
    ({"instance_id": "i", "messages": [SYSTEM, USER]}, Row(messages=(SYSTEM, USER))),
]


def written(folder: Path, *records: Any) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    return path


@pytest.mark.parametrize(("record", "row"), LAYOUTS)
def test_layouts(record: dict[str, Any], row: Row) -> None:
    assert read_row(record, "here") == row


@pytest.mark.parametrize("record", [record for record, _ in LAYOUTS])
def test_regeneration_and_benchmarks_ask_the_same(tmp_path: Path, record: dict[str, Any]) -> None:
    """Once each had a reader of its own: one did not know ShareGPT, the other failed at tools given as JSON text."""
    path = written(tmp_path, record)

    def key(messages: tuple[Message, ...], *more: Any) -> str:
        return json.dumps([list(messages), *more])

    prompts = [key((*p.messages, *map(user, p.turns[:1])), p.tools, p.ids) for p in read_prompts(path)]
    calls = [key(c.messages, c.tools, c.ids) for c in load(path) if c.follows is None]
    assert sorted(prompts) == sorted(calls)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"score": 1, "answer": "a"}, "no prompt found among the keys answer, score. Expected turns, messages or"),
        ({}, r"no prompt found among the keys \(none\)"),
        ({"prompt": "  "}, "no prompt found among the keys prompt"),
        ({"prompt": 3}, "no prompt found"),
        ({"turns": []}, "no prompt found"),
        ({"turns": [1, "a"]}, "'turns' holds '1'. Expected a list of user turns"),
        ({"turns": ["a", " "]}, "'turns' holds ' '"),
        ({"turns": "a"}, "'turns' holds 'a'"),
        ({"messages": [ANSWER]}, "nobody asks in these messages"),
        ({"messages": [SYSTEM], "prompt": "a"}, "nobody asks in these messages"),
        ({"messages": ["hi"]}, "'messages' holds 'hi'. Expected a list of objects with role and content"),
        ({"messages": [USER, {"content": "x"}]}, "'messages' holds "),
        ({"messages": {"role": "user"}}, "'messages' holds "),
        ({"conversations": ["hi"]}, "'conversations' holds 'hi'. Expected a list of objects with value and from"),
        ({"conversations": [{"from": "bard", "value": "x"}]}, "'conversations' holds .*bard"),
        ({"instance_id": "i", "messages": ["hi"]}, "'messages' holds 'hi'"),
        ({"prompt": "a", "tools": "look"}, "'tools' holds 'look'. Expected a list of objects, or the JSON text of one"),
        ({"prompt": "a", "tools": '{"name": "look"}'}, "'tools' holds "),
        ({"prompt": "a", "tools": ["look"]}, "'tools' holds 'look'"),
        ({"prompt_ids": ["x"]}, "'prompt_ids' holds 'x'. Expected a list of token ids"),
        ({"prompt_ids": [True]}, "'prompt_ids' holds 'True'"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, record: dict[str, Any], says: str) -> None:
    path = written(tmp_path, {"prompt": "fine"}, record)
    for read in (read_prompts, load):
        with pytest.raises(DataError, match=rf"set\.jsonl, line 2: {says}"):
            list(read(path))
