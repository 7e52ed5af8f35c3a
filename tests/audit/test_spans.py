"""The kind of every character, by the text alone; and what is copied, by token ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlite.audit.spans import ARGUMENTS, CODE, COPY_LENGTH, DIFF, PROSE, REASONING, SPANS, TOOL_NAME, copied, spans

SHORT = {PROSE: "p", REASONING: "r", TOOL_NAME: "n", ARGUMENTS: "a", CODE: "c", DIFF: "d"}
HERMES = '<tool_call>\n{"name": "look", "arguments": {"name": "x"}}\n</tool_call>'
PATCH = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n same"


def kinds(text: str, *, thinking: bool = False) -> str:
    """One letter a character."""
    return "".join(SHORT[s] for s in spans(list(text), thinking=thinking))


def where(text: str, kind: str, **options: bool) -> str:
    """The text of one kind."""
    return "".join(c for c, s in zip(text, spans(list(text), **options), strict=True) if s == kind)


def test_prose_is_what_is_nothing_else() -> None:
    assert kinds('just words, `x` and {"a": 1}') == "p" * 28
    assert spans([]) == []


def test_thoughts_whether_they_end_or_not() -> None:
    assert where("<think>hm ```x\n```</think>so", REASONING) == "<think>hm ```x\n```</think>"
    assert kinds("<think>hm") == "r" * 9
    assert kinds("hm</think>so") == "r" * 10 + "pp"
    assert kinds("hm", thinking=True) == "rr"
    assert kinds("hm</think>so", thinking=True) == "r" * 10 + "pp"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (HERMES, "look"),
        ('{"name": "look", "parameters": {"at": 1}}', "look"),
        ('[{"type": "function", "name": "look", "arguments": {"at": 1}}', "look"),
        ('[TOOL_CALLS][{"name": "look", "arguments": {}}, {"name": "stop", "arguments": {}}]', "lookstop"),
        ('<|python_tag|>{"name": "look", "parameters": {}}', "look"),
        ("<function=look>\n<parameter=at>\n1\n</parameter>\n</function>", "look"),
        ("<tool_call>\n<function=look>\n</function>\n</tool_call>", "look"),
        ('<tool_call>\n{"name": "lo', "lo"),
    ],
)
def test_tool_calls_of_several_makes(text: str, name: str) -> None:
    assert where(text, TOOL_NAME) == name
    assert set(kinds(text)) == {"n", "a"}


def test_words_around_a_call_stay_words() -> None:
    assert where("so: " + HERMES + " done", PROSE) == "so:  done"


def test_code_and_patches() -> None:
    assert where("do\n```bash\nls\n```\nok", CODE) == "```bash\nls\n```"
    assert where("do\n~~~\nx", CODE) == "~~~\nx"
    assert where(f"see\n{PATCH}\nend", DIFF) == PATCH
    assert kinds(f"```diff\n{PATCH}\n```") == "d" * (len(PATCH) + 12)
    assert kinds(f"```\n{PATCH}\n```") == "d" * (len(PATCH) + 8)
    assert where("```py\n@@ no patch\n```", DIFF) == ""
    assert where("a\n---\nb", DIFF) == ""


def test_a_token_is_what_its_first_letter_is() -> None:
    pieces = ["so", "\n", "```", "bash\n", "ls", "\n```", "\n\n", "ok", ""]
    assert spans(pieces) == [PROSE, PROSE, CODE, CODE, CODE, CODE, PROSE, PROSE, PROSE]
    assert spans([" ```x\n", "y"])[0] == CODE
    assert spans(["", "<think>"])[0] == REASONING


@given(st.text('a`<>{}":@+- \nthinkfuco=_ldm/', max_size=60), st.booleans())
def test_every_token_has_one_span_whatever_the_text(text: str, thinking: bool) -> None:
    pieces = [text[i : i + 3] for i in range(0, len(text), 3)]
    found = spans(pieces, thinking=thinking)
    assert len(found) == len(pieces)
    assert set(found) <= set(SPANS)


def naive_copied(prompt: list[int], ids: list[int]) -> list[bool]:
    """Token i is copied if some window of COPY_LENGTH tokens that holds it stands in the prompt."""
    windows = [prompt[j : j + COPY_LENGTH] for j in range(len(prompt) - COPY_LENGTH + 1)]
    starts = [i for i in range(len(ids) - COPY_LENGTH + 1) if ids[i : i + COPY_LENGTH] in windows]
    return [any(start <= i < start + COPY_LENGTH for start in starts) for i in range(len(ids))]


@given(st.lists(st.integers(0, 1), max_size=40), st.lists(st.integers(0, 1), max_size=30))
def test_copies_are_long_runs_that_stand_in_the_prompt(prompt: list[int], ids: list[int]) -> None:
    assert copied(prompt, ids) == naive_copied(prompt, ids)


def test_a_run_of_eight_counts_and_one_of_seven_does_not() -> None:
    prompt = list(range(100))
    assert copied(prompt, [200, *range(10, 18), 200]) == [False, *[True] * 8, False]
    assert copied(prompt, [200, *range(10, 17), 200]) == [False] * 9
