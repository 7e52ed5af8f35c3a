"""What kind of text each token is part of, read off the text itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

PROSE, REASONING, TOOL_NAME, ARGUMENTS, CODE, DIFF = SPANS = (
    "prose", "reasoning", "tool-call name", "JSON arguments", "code", "diff",
)  # fmt: skip
COPY_LENGTH = 8  # tokens: a shorter run is found in any long text by chance

FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n`]*)\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
PATCH = re.compile(
    r"^(?:diff --git |--- \S[^\n]*\n\+\+\+ |@@ -\d)[^\n]*"
    r"(?:\n(?:diff --git |index |new file|deleted file|similarity |rename |@@|[ +\-\\])[^\n]*)*",
    re.MULTILINE,
)
CALLS = (
    re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL),
    re.compile(r"<function=.*?(?:</function>|\Z)", re.DOTALL),
    re.compile(r"(?:\[TOOL_CALLS\]|<\|python_tag\|>).*", re.DOTALL),
    re.compile(r"\A\s*\[?\s*\{\s*\"(?:name|type|function)\".*?\"(?:arguments|parameters)\".*", re.DOTALL),
)
NAMES = (
    re.compile(r'\A[^"]*"name"\s*:\s*"([^"]*)'),
    re.compile(r'"name"\s*:\s*"([^"]*)"(?=\s*,\s*"(?:arguments|parameters)")'),
    re.compile(r"<function=([^>\n]*)"),
)
THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
THINK_END = "</think>"


def spans(pieces: Sequence[str], *, thinking: bool = False) -> list[str]:
    """The span of each token of an answer, whose texts are ``pieces``: the kind of its first character that is no space.

    ``thinking`` says that the prompt ended inside <think>. Marks that open and close a span belong to it.
    """
    text = "".join(pieces)
    kinds = _kinds(text, thinking)
    found, start = [], 0
    for piece in pieces:
        at = start + len(piece) - len(piece.lstrip())
        at = start if at == start + len(piece) else at
        found.append(kinds[min(at, len(kinds) - 1)] if kinds else PROSE)
        start += len(piece)
    return found


def copied(prompt: Sequence[int], ids: Sequence[int]) -> list[bool]:
    """Which tokens of an answer belong to a run of ``COPY_LENGTH`` tokens or more that stands in the prompt."""
    known = {tuple(prompt[i : i + COPY_LENGTH]) for i in range(len(prompt) - COPY_LENGTH + 1)}
    marks = [False] * len(ids)
    for i in range(len(ids) - COPY_LENGTH + 1):
        if tuple(ids[i : i + COPY_LENGTH]) in known:
            marks[i : i + COPY_LENGTH] = [True] * COPY_LENGTH
    return marks


def _kinds(text: str, thinking: bool) -> list[str]:
    """The kind of every character: later rules overrule earlier ones."""
    kinds = [PROSE] * len(text)

    def paint(start: int, end: int, kind: str) -> None:
        kinds[start:end] = [kind] * (end - start)

    for patch in PATCH.finditer(text):
        paint(*patch.span(), DIFF)
    for fence in FENCE.finditer(text):
        is_patch = fence[2].strip() in ("diff", "patch") or PATCH.match(fence[3])
        paint(*fence.span(), DIFF if is_patch else CODE)
    for pattern in CALLS:
        for call in pattern.finditer(text):
            paint(*call.span(), ARGUMENTS)
            for name in (n for names in NAMES for n in names.finditer(call[0])):
                paint(call.start() + name.start(1), call.start() + name.end(1), TOOL_NAME)
    for thought in THOUGHT.finditer(text):
        paint(*thought.span(), REASONING)
    end = text.find(THINK_END)
    if thinking or (end >= 0 and "<think>" not in text[:end]):
        paint(0, end + len(THINK_END) if end >= 0 else len(text), REASONING)
    return kinds
