"""One logged conversation, in one form whatever wrote the log."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
Tool = Mapping[str, Any]
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
SHELL = re.compile(r"```(?:bash|sh|shell|console)\s*\n(?:\s*cd\s+\S+\s*&&)?\s*([\w./-]{1,24})?")


class UnusableError(Exception):
    """A record that cannot be replayed. The text is the reason, with none of the record's contents in it."""


@dataclass(frozen=True)
class Trace:
    """A conversation and the places in it where the target is to write.

    ``messages`` are OpenAI-style. A place i in ``turns`` means: the target continues messages[:i], and messages[i], if
    there is one, is what the log has there. ``cut`` is the message that may lose its middle where all does not fit.
    """

    id: str
    layout: str
    messages: tuple[Message, ...]
    turns: tuple[int, ...]
    tools: tuple[Tool, ...] = ()
    cut: int | None = None

    def number(self, place: int) -> int:
        """1 for the first answer of the conversation, 2 for the second, ..."""
        return 1 + len([m for m in self.messages[:place] if m["role"] == "assistant"])

    def logged(self, place: int) -> Message | None:
        """What the log has at a place, if anything."""
        found = self.messages[place] if place < len(self.messages) else None
        return found if found and found["role"] == "assistant" else None


def make_trace(
    id: str,
    layout: str,
    messages: Any,
    *,
    tools: Any = None,
    turns: Sequence[int] | None = None,
    cut: int | None = None,
) -> Trace:
    """A trace of messages as a log has them; by default every assistant turn is replayed. Errors: ``UnusableError``."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UnusableError("no messages")
    clean = tuple(_message(m) for m in messages)
    places = assistant_turns(clean) if turns is None else tuple(turns)
    if not places:
        raise UnusableError("no turn for the assistant to write")
    return Trace(mended(id)[:200], layout, clean, places, tuple(tool_list(tools)), cut)


def assistant_turns(messages: Sequence[Message]) -> tuple[int, ...]:
    """Places of assistant messages behind someone else's, and the end where the log stops before an answer."""
    places, asked = [], False
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and asked:
            places.append(i)
        asked = asked or message["role"] in ("user", "tool")
    if messages[-1]["role"] in ("user", "tool"):
        places.append(len(messages))
    return tuple(places)


def tool_list(tools: Any) -> list[Tool]:
    """Tools in the form of the API, from a list or the JSON text of one; bare functions are wrapped."""
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise UnusableError("tools that are not JSON") from None
    if not tools:
        return []
    if not isinstance(tools, list) or not all(isinstance(t, Mapping) for t in tools):
        raise UnusableError("tools that are not a list of objects")
    return [t if "function" in t or "type" in t else {"type": "function", "function": t} for t in tools]


def tool_of(message: Message | None) -> str:
    """What an assistant message calls: names of its tools, the first command of a shell block, or '' for prose."""
    if message is None:
        return ""
    names = [str(call["function"]["name"]) for call in message.get("tool_calls") or ()]
    if names:
        return ", ".join(dict.fromkeys(names))
    shell = SHELL.search(message["content"])
    return "" if shell is None else f"bash: {shell[1]}" if shell[1] else "bash"


def mended(text: str) -> str:
    """Text that can be written as UTF-8: half of a surrogate pair becomes the replacement character."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _message(raw: Any) -> Message:
    if not isinstance(raw, Mapping):
        raise UnusableError("a message that is not an object")
    role = ROLES.get(raw["role"]) if isinstance(raw.get("role"), str) else None
    if role is None:
        raise UnusableError("a message with an unknown role")
    message: dict[str, Any] = {"role": role, "content": mended(_text(raw.get("content")))}
    calls = raw.get("tool_calls") or ([raw["function_call"]] if raw.get("function_call") else [])
    if not isinstance(calls, list):
        raise UnusableError("tool calls that are not a list")
    if calls and role == "assistant":
        message["tool_calls"] = [_call(c) for c in calls]
    for key in ("tool_call_id", "name"):
        if isinstance(raw.get(key), str):
            message[key] = mended(raw[key])
    return message


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UnusableError("a message whose content is not text")
    texts = [p.get("text", p.get("value")) if isinstance(p, Mapping) else p for p in content]
    if not all(isinstance(text, str) for text in texts):
        raise UnusableError("a message with images or other parts that are not text")
    return "".join(texts)


def _call(raw: Any) -> dict[str, Any]:
    function = raw.get("function", raw) if isinstance(raw, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise UnusableError("a tool call without a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = mended(arguments)
    elif arguments is None:
        arguments = {}
    elif not isinstance(arguments, Mapping):
        raise UnusableError("a tool call whose arguments are not an object")
    call = {"type": "function", "function": {"name": mended(function["name"]), "arguments": arguments}}
    return {"id": raw["id"], **call} if isinstance(raw.get("id"), str) else call
