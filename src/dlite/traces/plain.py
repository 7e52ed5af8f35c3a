"""Conversations with tools as conversations of users and assistants only, for templates that know no others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dlite.data.chat import TOOLS_HEADING
from dlite.traces.trace import Message, Tool


def plain_messages(messages: Sequence[Message], tools: Sequence[Tool] = (), *, system: bool = True) -> list[Message]:
    """Tools in the system message, calls in the assistant's words, results in the user's; roles then alternate.

    Without ``system`` the system message opens the first user turn.
    """
    said = [(_role(m), _words(m)) for m in messages]
    if tools:
        listing = TOOLS_HEADING + "\n<tools>\n" + "\n".join(json.dumps(t) for t in tools) + "\n</tools>"
        at = 1 if said and said[0][0] == "system" else 0
        said.insert(at, ("system", listing))
    head = next((i for i, (role, _) in enumerate(said) if role != "system"), len(said)) if system else 0
    said[head:] = [("user" if role == "system" else role, text) for role, text in said[head:]]
    merged = ((role, [text for _, text in run if text]) for role, run in groupby(said, lambda one: one[0]))
    return [{"role": role, "content": "\n\n".join(texts)} for role, texts in merged]


def plain_text(messages: Sequence[Message]) -> str:
    """Plain messages without any template, for targets that have none."""
    said = [f"{m['role'].capitalize()}:\n{m['content']}\n\n" for m in messages]
    return "".join([*said, "Assistant:\n"])


def _role(message: Message) -> str:
    return "user" if message["role"] == "tool" else str(message["role"])


def _words(message: Message) -> str:
    if message["role"] == "tool":
        return f"<tool_response>\n{message['content']}\n</tool_response>"
    calls = [f"<tool_call>\n{_call(c['function'])}\n</tool_call>" for c in message.get("tool_calls") or ()]
    return "\n".join(filter(None, [message["content"], *calls]))


def _call(function: Any) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        return f'{{"name": {json.dumps(function["name"])}, "arguments": {arguments or "{}"}}}'
    return json.dumps({"name": function["name"], "arguments": arguments}, default=str)
