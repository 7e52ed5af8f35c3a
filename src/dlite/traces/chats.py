"""Chat logs: requests and responses of an OpenAI-compatible server, lists of messages, ShareGPT conversations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dlite.data.rows import SPEAKERS
from dlite.traces.trace import Trace, UnusableError, make_trace

REQUESTS, RESPONSES = ("request", "body", "input", "kwargs"), ("response", "output", "completion")
IDS = ("id", "custom_id", "request_id", "conversation_id", "task_id")


def is_chat(record: Mapping[str, Any]) -> bool:
    """Messages, at the top or inside a request."""
    return isinstance(_request(record).get("messages"), list)


def read_chat(record: Mapping[str, Any], name: str) -> Trace:
    """With a response: the one turn it answers. Messages alone: every assistant turn among them."""
    request = _request(record)
    messages, answer = request["messages"], _response(record)
    turns = None if answer is None and request is record else (len(messages),)
    tools = request.get("tools") or request.get("functions") or record.get("tools")
    whole = messages if answer is None else [*messages, answer]
    return make_trace(record_id(record, name), "chat log", whole, tools=tools, turns=turns)


def is_sharegpt(record: Mapping[str, Any]) -> bool:
    """``conversations`` of from and value."""
    return isinstance(record.get("conversations"), list)


def read_sharegpt(record: Mapping[str, Any], name: str) -> Trace:
    """Every assistant turn; function calls and their results become tool calls and tool messages."""
    messages = [_spoken(m) for m in record["conversations"]]
    if isinstance(record.get("system"), str) and record["system"]:
        messages.insert(0, {"role": "system", "content": record["system"]})
    return make_trace(record_id(record, name), "ShareGPT", messages, tools=record.get("tools"))


def record_id(record: Mapping[str, Any], name: str) -> str:
    """The record's own name, or the place it stands in."""
    return next((str(record[key]) for key in IDS if isinstance(record.get(key), (str, int))), name)


def _request(record: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(record.get("messages"), list):
        return record
    inner = (record[key] for key in REQUESTS if isinstance(record.get(key), Mapping))
    return next((one for one in inner if "messages" in one), {})


def _response(record: Mapping[str, Any]) -> Any:
    """The answer's message in any of the places logs keep it, None where there is none."""
    found = next((record[key] for key in RESPONSES if record.get(key)), record if "choices" in record else None)
    if isinstance(found, Mapping) and isinstance(found.get("body"), Mapping):
        found = found["body"]
    if isinstance(found, Mapping) and isinstance(found.get("choices"), list):
        first = found["choices"][0] if found["choices"] else None
        found = first.get("message") if isinstance(first, Mapping) else None
    if isinstance(found, str):
        return {"role": "assistant", "content": found}
    return found if isinstance(found, Mapping) and found.get("role") == "assistant" else None


def _spoken(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UnusableError("a message that is not an object")
    speaker, text = message.get("from", message.get("role")), message.get("value", message.get("content"))
    role = SPEAKERS.get(speaker) if isinstance(speaker, str) else None
    if speaker == "function_call" and (calls := _calls(text)):
        return {"role": "assistant", "content": "", "tool_calls": calls}
    return {"role": role, "content": text}


def _calls(text: Any) -> list[Any]:
    """The calls in the text of a function_call turn; none where it holds something else."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return []
    calls = value if isinstance(value, list) else [value]
    return calls if all(isinstance(c, Mapping) and isinstance(c.get("name"), str) for c in calls) else []
