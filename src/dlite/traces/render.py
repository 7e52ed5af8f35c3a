"""From a trace to the prompt of one target, and what that target's chat template cannot say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dlite.data.chat import encode, render
from dlite.errors import DataError, TargetError
from dlite.traces.plain import plain_messages, plain_text
from dlite.traces.trace import Message, Tool, Trace, UnusableError

REFUSED = "a turn that the target's chat template refuses; --plain writes it as text"
SLACK = 8  # tokens that a cut may cost or save when its two sides meet
USER: Message = {"role": "user", "content": "uprobe"}
TOOL = {"type": "function", "function": {"name": "tprobe", "description": "dprobe", "parameters": {"type": "object"}}}


@dataclass(frozen=True)
class Renderer:
    """How conversations reach a target: through its template, or with ``plain`` as users' and assistants' words only.

    ``system`` is False for a template that refuses a system message; only a plain rendering minds it.
    """

    tokenizer: Any
    plain: bool = False
    system: bool = True

    def ids(self, trace: Trace, place: int) -> tuple[int, ...]:
        """Token ids of messages[:place], where the assistant goes on. Errors: ``UnusableError``."""
        messages = trace.messages[:place]
        try:
            if not self.plain:
                return tuple(render(self.tokenizer, messages, trace.tools))
            plain = plain_messages(messages, trace.tools, system=self.system)
            if not getattr(self.tokenizer, "chat_template", None):
                return tuple(encode(self.tokenizer, plain_text(plain)))
            return tuple(render(self.tokenizer, plain))
        except DataError:
            raise UnusableError(REFUSED) from None

    def fitted(self, trace: Trace, limit: int) -> Trace:
        """A trace whose first prompt has at most ``limit`` tokens: the message it may cut has lost its middle.

        The first and the last tokens stay, as many of each, as LongBench v2 does. Errors: ``UnusableError``.
        """
        if trace.cut is None:
            return trace
        whole = str(trace.messages[trace.cut]["content"])
        room = 16 * limit  # characters from either end that surely hold as many tokens as are wanted
        text = whole if len(whole) <= 2 * room else whole[:room] + whole[-room:]
        ids = encode(self.tokenizer, text)
        spare = len(self.ids(_with(trace, ""), trace.turns[0]))
        keep = limit - spare - SLACK
        if len(text) == len(whole) and len(ids) <= keep:
            return trace
        while keep > 2:
            left, right = ids[: keep // 2], ids[len(ids) - keep // 2 :]
            shorter = _with(trace, f"{self._text(left)}{self._text(right)}")
            over = len(self.ids(shorter, trace.turns[0])) - limit
            if over <= 0:
                return shorter
            keep -= over + SLACK
        raise UnusableError("a question too long for the context even without its text")

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def renderer(tokenizer: Any, *, plain: bool) -> Renderer:
    """The way to render for a target. Errors: ``TargetError`` for one without a template, unless ``plain``."""
    if plain or getattr(tokenizer, "chat_template", None):
        return Renderer(tokenizer, plain, not plain or _shown(tokenizer, [_system(), USER], ()) is not None)
    raise TargetError(
        "this target has no chat template, so conversations cannot be rendered. Expected one in its tokenizer. Write "
        "them as plain text: --plain"
    )


def mismatches(rendering: Renderer, traces: Iterable[Trace]) -> list[str]:
    """What the traces hold and the template cannot say, found by rendering a small example of each; told once."""
    if rendering.plain:
        return []
    used = {feature for trace in traces for feature in features(trace)}
    notes = [_note(rendering.tokenizer, feature) for feature in EXAMPLES if feature in used]
    return [note for note in notes if note]


def features(trace: Trace) -> set[str]:
    """Which of ``EXAMPLES`` a trace needs."""
    found = {"tools"} if trace.tools else set()
    for message, following in zip(trace.messages, [*trace.messages[1:], None], strict=True):
        role, calls = message["role"], message.get("tool_calls") or ()
        found |= {"system messages"} if role == "system" else set()
        found |= {"tool calls"} if calls else set()
        found |= {"parallel tool calls"} if len(calls) > 1 else set()
        found |= {"words beside a tool call"} if calls and message["content"] else set()
        found |= {"tool results"} if role == "tool" else set()
        found |= (
            {"a turn after a turn of the same role"} if following and role == following["role"] != "tool" else set()
        )
    return found


def _system() -> Message:
    return {"role": "system", "content": "sprobe"}


def _calling(*names: str, content: str = "") -> Message:
    calls = [{"id": f"call{n}abcd", "function": {"name": n, "arguments": {"a": f"v{n}"}}} for n in names]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def _result(name: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call{name}abcd", "name": name, "content": f"r{name}"}


# feature -> (messages, tools, words that must come out)
EXAMPLES: dict[str, tuple[list[Message], tuple[Tool, ...], tuple[str, ...]]] = {
    "system messages": ([_system(), USER], (), ("sprobe",)),
    "tools": ([USER], (TOOL,), ("tprobe", "dprobe")),
    "tool calls": ([USER, _calling("qone"), _result("qone"), USER], (TOOL,), ("qone", "vqone")),
    "tool results": ([USER, _calling("qone"), _result("qone")], (TOOL,), ("rqone",)),
    "parallel tool calls": (
        [USER, _calling("qone", "qtwo"), _result("qone"), _result("qtwo")],
        (TOOL,),
        ("vqone", "vqtwo", "rqone", "rqtwo"),
    ),
    "words beside a tool call": ([USER, _calling("qone", content="wprobe"), _result("qone")], (TOOL,), ("wprobe",)),
    "a turn after a turn of the same role": ([USER, {**USER, "content": "uagain"}], (), ("uprobe", "uagain")),
}


def _note(tokenizer: Any, feature: str) -> str:
    messages, tools, words = EXAMPLES[feature]
    text = _shown(tokenizer, messages, tools)
    if text is None:
        return f"The chat template refuses {feature}: such turns are skipped. --plain writes them as text."
    if not all(word in text for word in words):
        return f"The chat template leaves out {feature}: the target does not see them. --plain writes them as text."
    template = str(tokenizer.chat_template)
    if feature in ("tools", "tool calls") and feature.replace(" ", "_") not in template:
        return f"The chat template has no place for {feature}: they are written as text in <tool_call> tags."
    if feature == "tool results" and "tool" not in template:
        return "The chat template does not know the role 'tool': results stand under a heading the target may never have seen."
    return ""


def _shown(tokenizer: Any, messages: Sequence[Message], tools: Sequence[Tool]) -> str | None:
    """What the target would read, None where the template refuses."""
    try:
        return str(tokenizer.decode(render(tokenizer, messages, tools), skip_special_tokens=False))
    except (DataError, TargetError):
        return None


def _with(trace: Trace, content: str) -> Trace:
    """The trace with other content in the message that may be cut."""
    at = trace.cut or 0
    messages = (*trace.messages[:at], {**trace.messages[at], "content": content}, *trace.messages[at + 1 :])
    return replace(trace, messages=messages)
