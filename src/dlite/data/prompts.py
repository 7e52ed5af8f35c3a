"""Prompts from the layouts people have: one record, one or more calls for the target to answer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from dlite.data.jsonl import read_jsonl
from dlite.errors import DataError

QUESTION_KEYS = ("prompt", "question", "problem", "instruction", "text")
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}


@dataclass(frozen=True)
class Prompt:
    """A conversation for the target to continue.

    ``messages`` is history as logged; ``turns`` are user turns still to be put, one after each answer.
    """

    id: str
    source: str
    messages: tuple[Mapping[str, Any], ...]
    turns: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()


def read_prompts(
    path: str | Path, *, calls_per_trace: int = 4, max_chars: int | None = None, seed: int = 0
) -> Iterator[Prompt]:
    """Prompts of a .jsonl or .jsonl.gz file, detected by content.

    `turns` (user turns), `messages` with `tools`, `conversations` (ShareGPT), one of prompt, question, problem,
    instruction (with `input`), text; or an agent trace (`instance_id`, `messages`), from which ``calls_per_trace``
    assistant turns with a history of at most ``max_chars`` characters are chosen, the same for the same seed.
    Errors: ``DataError`` with the line number.
    """
    source = Path(path).name.split(".")[0]
    for number, record in read_jsonl(path):
        _check_lists(record, f"{path}, line {number}")
        given = (record.get(name) for name in ("id", "task_id"))
        key = str(next((value for value in given if value is not None), number))
        if "instance_id" in record and isinstance(record.get("messages"), list):
            yield from _trace(record, source, calls_per_trace, max_chars, seed)
        else:
            messages, turns = _conversation(record, path, number)
            yield Prompt(f"{source}-{key}", source, messages, turns, tuple(record.get("tools") or ()))


def _check_lists(record: dict[str, Any], where: str) -> None:
    for key in ("messages", "conversations", "tools"):
        value = record.get(key)
        odd = [item for item in value if not isinstance(item, Mapping)] if isinstance(value, list) else [value]
        if value and odd and (isinstance(value, list) or key == "tools"):
            raise DataError(
                f"{where}: {key!r} holds {str(odd[0])[:40]!r}. Expected a list of objects. Mend or remove that line."
            )


def _conversation(
    record: dict[str, Any], path: str | Path, number: int
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    if isinstance(turns := record.get("turns"), list) and turns and all(isinstance(t, str) for t in turns):
        return (), tuple(turns)
    messages = record.get("messages")
    if messages is None and isinstance(record.get("conversations"), list):
        messages = [_sharegpt(m) for m in record["conversations"]]
    if isinstance(messages, list) and messages:
        while messages and messages[-1].get("role") == "assistant":  # that answer is the target's to write
            messages = messages[:-1]
        if messages:
            return tuple(messages), ()
    for key in QUESTION_KEYS:
        if isinstance(record.get(key), str) and record[key].strip():
            text = "\n\n".join(filter(None, [record[key], record.get("input")]))
            return (), (text,)
    raise DataError(
        f"{path}, line {number}: no prompt found among the keys {', '.join(sorted(record)) or '(none)'}. Expected 'turns', "
        f"'messages', 'conversations', or text under {', '.join(QUESTION_KEYS)}."
    )


def _sharegpt(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role") or SHAREGPT_ROLES.get(str(message.get("from")), "user")
    return {"role": role, "content": message.get("content", message.get("value"))}


def _trace(record: dict[str, Any], source: str, calls: int, max_chars: int | None, seed: int) -> Iterable[Prompt]:
    """Calls of an agent trace, spread over it: each is the history before one assistant turn."""
    messages, name = record["messages"], str(record["instance_id"])
    lengths = accumulate(len(str(m.get("content") or "")) for m in messages)
    before = [0, *lengths]
    turns = [
        i
        for i, m in enumerate(messages)
        if m.get("role") == "assistant" and i > 0 and (max_chars is None or before[i] <= max_chars)
    ]
    chosen = sorted(random.Random(f"{seed}-{name}").sample(turns, min(calls, len(turns))))
    tools = tuple(record.get("tools") or ())
    return [Prompt(f"{source}-{name}-{i}", source, tuple(messages[:i]), (), tools) for i in chosen]
