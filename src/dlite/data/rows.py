"""One row of a prompt file to one value, whatever its layout: regeneration and benchmarks read the same rows alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeGuard

from dlite.data.chat import Message
from dlite.errors import DataError

QUESTIONS = ("prompt", "question", "problem", "instruction", "text")
SPEAKERS = {  # of ShareGPT -> role
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
class Row:
    """What a row asks: user ``turns``, a history of ``messages``, or ready token ``ids``.

    ``answers`` are the places in ``messages`` where an agent's log has the assistant speak; () for any other row, whose
    messages end where the target goes on.
    """

    turns: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()
    tools: tuple[Message, ...] = ()
    answers: tuple[int, ...] = ()


def read_row(record: Mapping[str, Any], where: str) -> Row:
    """The row's value; ``where`` (file and line) begins every complaint.

    The first of these that is there and not empty counts: `turns`, `messages` or `conversations` (ShareGPT; an agent's
    log with `instance_id`), `prompt_ids`, one of prompt, question, problem, instruction (with `input`), text.
    `tools`, a list or the JSON text of one, come along. Errors: ``DataError``.
    """
    tools = tuple(_listed(record, "tools", _is_object, "a list of objects, or the JSON text of one", where))
    if turns := _listed(record, "turns", _is_text, "a list of user turns, each some text", where):
        return Row(turns=tuple(turns), tools=tools)
    if messages := _messages(record, where):
        places = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
        if "instance_id" in record and places:
            return Row(messages=tuple(messages), tools=tools, answers=tuple(places))
        while messages and messages[-1]["role"] == "assistant":  # that answer is the target's to write
            messages.pop()
        if all(m["role"] in ("assistant", "system") for m in messages):
            raise DataError(
                f"{where}: nobody asks in these messages. Expected one from a user or a tool. Mend the line."
            )
        return Row(messages=tuple(messages), tools=tools)
    if ids := _listed(record, "prompt_ids", lambda i: type(i) is int, "a list of token ids", where):
        return Row(ids=tuple(ids))
    for key in QUESTIONS:
        text = record.get(key)
        if _is_text(text):
            more = record.get("input") if key == "instruction" else None
            return Row(turns=(f"{text}\n\n{more}" if more else text,), tools=tools)
    raise DataError(
        f"{where}: no prompt found among the keys {', '.join(sorted(record)) or '(none)'}. Expected turns, messages or "
        f"conversations (with tools), prompt_ids, or text under {', '.join(QUESTIONS)}. Rename one of them."
    )


def _messages(record: Mapping[str, Any], where: str) -> list[Message]:
    if messages := _listed(record, "messages", _is_message, "a list of objects with role and content", where):
        return list(messages)
    expected = f"a list of objects with value and from ({', '.join(SPEAKERS)})"
    said = _listed(record, "conversations", lambda m: _is_object(m) and _is_message(_sharegpt(m)), expected, where)
    return [_sharegpt(m) for m in said]


def _sharegpt(message: Mapping[str, Any]) -> Message:
    role = message.get("role") or SPEAKERS.get(str(message.get("from")))
    return {"role": role, "content": message.get("content", message.get("value"))}


def _listed(record: Mapping[str, Any], key: str, fits: Callable[[Any], Any], expected: str, where: str) -> list[Any]:
    """The list under a key, empty where there is none."""
    value = record.get(key)
    if key == "tools" and isinstance(value, str):
        with suppress(json.JSONDecodeError):  # said below
            value = json.loads(value or "[]")
    odd = [item for item in value if not fits(item)] if isinstance(value, list) else [value] if value else []
    if odd:
        raise DataError(f"{where}: {key!r} holds {str(odd[0])[:40]!r}. Expected {expected}. Mend or remove the line.")
    return value or []


def _is_object(item: Any) -> bool:
    return isinstance(item, Mapping)


def _is_message(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("role"), str)


def _is_text(item: Any) -> TypeGuard[str]:
    return isinstance(item, str) and bool(item.strip())
