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
TOOLS_HEADING = (
    "You can call these functions. To call one, answer with a JSON object with its name and arguments inside "
    "<tool_call></tool_call>."
)


def render(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
    """Token ids of a conversation up to where the assistant's next turn begins.

    Errors: ``DataError`` for messages that are not messages, ``TargetError`` for a target without a template.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise TargetError(
            "this target has no chat template, so messages cannot be rendered. Give the text itself with --prompt and --raw."
        )
    template = json.dumps(template)
    plain = [_plain(m, index, "tool_calls" in template) for index, m in enumerate(messages)]
    if not plain:
        raise DataError("the list of messages is empty. Expected at least one message.")
    if tools and "tools" not in template:
        plain, tools = _with_tools(plain, tools), None
    try:
        text = tokenizer.apply_chat_template(
            plain, tools=list(tools) if tools else None, add_generation_prompt=True, tokenize=False
        )
    except Exception as error:  # jinja templates raise what they like
        raise DataError(f"the target's chat template refuses these messages: {error}") from None
    return encode(tokenizer, text)


def encode(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text, with nothing added."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def _plain(message: Message, index: int, keeps_calls: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(
            f"message {index} is {json.dumps(message, default=str)[:80]}. Expected an object with 'role' and 'content'."
        )
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    if content is not None and not isinstance(content, str):
        raise DataError(
            f"message {index} has content of type {type(content).__name__}. Expected text or a list of parts."
        )
    plain: dict[str, Any] = {"role": message["role"], "content": content or ""}
    calls = message.get("tool_calls")
    if calls and keeps_calls:
        plain["tool_calls"] = [_call(c) for c in calls]
    elif calls:
        lines = [f"<tool_call>\n{json.dumps(_call(c)['function'])}\n</tool_call>" for c in calls]
        plain["content"] = "\n".join(filter(None, [plain["content"], *lines]))
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):  # the API sends a JSON string, templates expect the object
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = {"raw": arguments}
    return {"type": "function", "function": {"name": function.get("name", ""), "arguments": arguments}}


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    listing = TOOLS_HEADING + "\n<tools>\n" + "\n".join(json.dumps(t) for t in tools) + "\n</tools>"
    if messages[0]["role"] == "system":
        first = {**messages[0], "content": "\n\n".join(filter(None, [messages[0]["content"], listing]))}
        return [first, *messages[1:]]
    return [{"role": "system", "content": listing}, *messages]
