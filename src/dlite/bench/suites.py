"""Workloads: what a benchmark asks, read from JSONL files of many layouts into one list of calls.

A workload is the calls that carry its name. Files are read line by line, and what cannot be used is an error that
names the file and the line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlite.data.jsonl import read_jsonl
from dlite.errors import ConfigError, DataError

Message = Mapping[str, Any]
Render = Callable[[Any, Sequence[Message], Sequence[Any] | None], Sequence[int]]  # (tokenizer, messages, tools) -> ids
QUESTIONS = ("prompt", "question", "problem", "text")
LAYOUTS = "turns, messages (+ tools), prompt_ids, prompt, question, problem, text or instruction (+ input)"


@dataclass(frozen=True)
class Call:
    """One request of a workload: ``messages`` (with ``tools``) to render, or ready token ``ids``.

    ``follows`` names an earlier call of the same conversation: its messages and the target's own plain answer come
    before ``messages``. Calls of one ``group`` come from one line of a file.
    """

    id: str
    workload: str
    group: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Any, ...] | None = None
    ids: tuple[int, ...] = ()
    max_new_tokens: int = 256
    follows: str | None = None


def load(path: str | Path, *, workload: str | None = None, max_new_tokens: int = 256) -> list[Call]:
    """Every call of a ``.jsonl`` or ``.jsonl.gz`` file; the layout of each line is told by its keys.

    ``turns`` become one call each, every one behind the target's own answer to the one before. Agent logs
    (``instance_id`` and ``messages``) give a call for each assistant message: the log before it is the context.
    Other ``messages`` give one call, behind the last message that is not the assistant's. ``workload`` is by default
    the file's name. Errors: ``DataError``.
    """
    path = Path(path)
    name = workload or path.name.removesuffix(".gz").removesuffix(".jsonl")
    calls: list[Call] = []
    for number, row in read_jsonl(path):
        calls += _calls(row, f"{name}:{number}", name, max_new_tokens, f"{path}, line {number}")
    if not calls:
        raise DataError(f"{path} has no calls. Expected one JSON object a line with {LAYOUTS}. Check the file.")
    return calls


def in_range(
    calls: Sequence[Call], render: Render, tokenizer: Any, *, min_context: int = 0, max_context: int, n: int, seed: int
) -> list[Call]:
    """Up to ``n`` calls whose rendered prompt has min_context to max_context tokens, in the order of the file.

    The same for the same seed. A conversation is judged by its first turn, the only one known before the run.
    """
    _positive("n", n)
    if not 0 <= min_context <= max_context:
        raise ConfigError(
            f"the context range is {min_context} to {max_context}. Expected 0 <= min_context <= max_context."
        )
    bounds: dict[str, tuple[int, int]] = {}  # per group: messages known to be too few, messages known to be too many
    chosen: set[str] = set()
    for chain in _shuffled_chains(calls, seed):
        first = chain[0]
        few, many = bounds.get(first.group, (-1, 1 << 60))
        if len(chosen) >= n or (first.messages and not few < len(first.messages) < many):
            continue
        tokens = len(first.ids or render(tokenizer, first.messages, first.tools))
        if tokens < min_context:
            bounds[first.group] = (len(first.messages), many)
        elif tokens > max_context:
            bounds[first.group] = (few, len(first.messages))
        else:
            chosen.update(call.id for call in chain[: n - len(chosen)])
    if not chosen:
        raise DataError(
            f"none of {len(calls)} calls has {min_context} to {max_context} prompt tokens. Expected at least one. "
            "Widen the range."
        )
    return [call for call in calls if call.id in chosen]


def _calls(row: dict[str, Any], group: str, workload: str, limit: int, where: str) -> list[Call]:
    if "turns" in row:
        return _turn_calls(row, group, workload, limit, where)
    if "messages" in row:
        return _message_calls(row, group, workload, limit, where)
    if "prompt_ids" in row:
        ids = row["prompt_ids"]
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            raise _unusable(where, "prompt_ids", "a list of token ids")
        return [Call(group, workload, group, ids=tuple(ids), max_new_tokens=limit)]
    return [Call(group, workload, group, (_user(_question(row, where)),), _tools(row, where), max_new_tokens=limit)]


def _question(row: dict[str, Any], where: str) -> str:
    if "instruction" in row:
        text, extra = _text(row, "instruction", where), row.get("input") or ""
        return f"{text}\n\n{extra}" if extra else text
    for key in QUESTIONS:
        if key in row:
            return _text(row, key, where)
    raise DataError(f"{where}: found keys {', '.join(sorted(row)) or 'none'}. Expected {LAYOUTS}. Rename one of them.")


def _turn_calls(row: dict[str, Any], group: str, workload: str, limit: int, where: str) -> list[Call]:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t for t in turns):
        raise _unusable(where, "turns", "a list of user turns, each some text")
    tools = _tools(row, where)
    names = [group if i == 0 else f"{group}.{i + 1}" for i in range(len(turns))]
    return [
        Call(name, workload, group, (_user(turn),), tools, max_new_tokens=limit, follows=before)
        for name, before, turn in zip(names, [None, *names], turns, strict=False)
    ]


def _message_calls(row: dict[str, Any], group: str, workload: str, limit: int, where: str) -> list[Call]:
    listed = row["messages"]
    if not isinstance(listed, list) or not all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in listed):
        raise _unusable(where, "messages", "a list of objects with role and content")
    messages = tuple({**m, "content": _plain_content(m.get("content"))} for m in listed)
    tools = _tools(row, where)
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
    if "instance_id" in row and answers:
        return [
            Call(f"{group}.{turn}", workload, group, messages[:i], tools, max_new_tokens=limit)
            for turn, i in enumerate(answers, 1)
        ]
    asked = max((i + 1 for i, m in enumerate(messages) if m["role"] not in ("assistant", "system")), default=0)
    if not asked:
        raise _unusable(where, "messages", "at least one message from the user or a tool")
    return [Call(group, workload, group, messages[:asked], tools, max_new_tokens=limit)]


def _plain_content(content: Any) -> Any:
    """Lists of text parts become one text; anything else is the template's business."""
    if isinstance(content, list) and all(isinstance(p, dict) and ("text" in p or "value" in p) for p in content):
        return "".join(str(p.get("text", p.get("value"))) for p in content)
    return content


def _tools(row: dict[str, Any], where: str) -> tuple[Any, ...] | None:
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except json.JSONDecodeError:
            raise _unusable(where, "tools", "a list, or the JSON text of one") from None
    if not tools:
        return None
    if not isinstance(tools, list):
        raise _unusable(where, "tools", "a list, or the JSON text of one")
    return tuple(tools)


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value.strip():
        raise _unusable(where, key, "some text")
    return value


def _unusable(where: str, key: str, expected: str) -> DataError:
    return DataError(f"{where}: {key!r} cannot be used. Expected {expected}. Repair or remove the line.")


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}. Expected 1 or more. Ask for at least one call.")


def _shuffled_chains(calls: Sequence[Call], seed: int) -> list[list[Call]]:
    """Calls that follow each other belong together; the chains in an order fixed by the seed."""
    chains: dict[str, list[Call]] = {}
    for call in calls:
        chain = chains.get(call.follows or "", [])
        chain.append(call)
        chains[call.id] = chain
    unique = list({id(chain): chain for chain in chains.values()}.values())
    random.Random(seed).shuffle(unique)
    return unique
