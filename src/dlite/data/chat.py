"""Messages to token ids, through the target's own chat template and never around it unseen.

Where a template has no place for tools or tool calls, they are written as text in the common tag form, so that
nothing a conversation holds is silently dropped. Training, measuring and serving all render here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dlite.errors import DataError, TargetError

Message = Mapping[str, Any]
MARK = "\u241fanswer\u241f"  # stands for an answer where only what the template puts around it is wanted
TOOLS_HEADING = (
    "You can call these functions. To call one, answer with a JSON object with its name and arguments inside "
    "<tool_call></tool_call>."
)


def user(text: str) -> Message:
    """What a user says."""
    return {"role": "user", "content": text}


def render(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
    """Token ids of a conversation up to where the assistant's next turn begins.

    Errors: ``DataError`` for messages that are not messages, ``TargetError`` for a target without a template.
    """
    return encode(tokenizer, _text(tokenizer, messages, tools))


def next_turn_ids(tokenizer: Any, text: str) -> list[int]:
    """Token ids that close an answer and open the next one after a user turn, read off the template itself.

    Errors: ``DataError`` for a template that shows no answer between two user turns.
    """
    _, found, rest = _text(tokenizer, [user("x"), {"role": "assistant", "content": MARK}, user(text)]).partition(MARK)
    if not found:
        raise DataError(
            "the target's chat template leaves out an answer that another turn follows. Expected one that shows it. Give "
            "prompts of one turn."
        )
    return encode(tokenizer, rest)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text, with nothing added."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def _text(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise TargetError(
            "this target has no chat template, so messages cannot be rendered. Give the text itself with --prompt and --raw."
        )
    template = json.dumps(template)
    plain = [_plain(m, f"message {index}", "tool_calls" in template) for index, m in enumerate(messages)]
    if not plain:
        raise DataError("the list of messages is empty. Expected at least one message.")
    if tools and "tools" not in template:
        plain, tools = _with_tools(plain, tools), None
    try:
        return str(
            tokenizer.apply_chat_template(
                plain, tools=list(tools) if tools else None, add_generation_prompt=True, tokenize=False
            )
        )
    except Exception as error:  # jinja templates raise what they like
        raise DataError(
            f"the target's chat template refuses these messages: {error}. Expected roles and an order that it knows. Leave "
            "this conversation out or mend it."
        ) from None


def _plain(message: Message, name: str, keeps_calls: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(
            f"{name} is {json.dumps(message, default=str)[:80]}. Expected an object with 'role' and 'content'."
        )
    plain = {"role": message["role"], "content": _content(message.get("content"), name)}
    plain |= {key: message[key] for key in ("name", "tool_call_id") if message.get(key) is not None}
    listed = message.get("tool_calls") or []
    calls = [_call(call, name) for call in (listed if isinstance(listed, (list, tuple)) else [listed])]
    if calls and keeps_calls:
        plain["tool_calls"] = calls
    elif calls:
        lines = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in calls]
        plain["content"] = "\n".join(filter(None, [plain["content"], *lines]))
    return plain


def _content(content: Any, name: str) -> str:
    """The text of a message; the parts of a list are joined."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise DataError(f"{name} has content of type {type(content).__name__}. Expected text or a list of parts.")
    return "".join(_part(part, name) for part in content)


def _part(part: Any, name: str) -> str:
    text = part.get("text", part.get("value")) if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise DataError(
            f"{name} has a part of type {kind!r}. Expected parts of text: dlite's targets read nothing else. Leave the "
            "conversation out or describe that part in words."
        )
    return text


def _call(call: Any, name: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise DataError(f"{name} has the tool call {str(call)[:60]!r}. Expected an object with a function's name.")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):  # the API sends a JSON string, templates expect the object
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = {"raw": arguments}
    known = {"id": call["id"]} if call.get("id") is not None else {}
    return {**known, "type": "function", "function": {"name": function.get("name", ""), "arguments": arguments}}


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    listing = TOOLS_HEADING + "\n<tools>\n" + "\n".join(json.dumps(t) for t in tools) + "\n</tools>"
    if messages[0]["role"] == "system":
        first = {**messages[0], "content": "\n\n".join(filter(None, [messages[0]["content"], listing]))}
        return [first, *messages[1:]]
    return [{"role": "system", "content": listing}, *messages]
