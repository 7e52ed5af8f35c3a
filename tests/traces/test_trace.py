"""One conversation type: what is kept of messages, where the assistant is to write, what a turn calls."""

from __future__ import annotations

from typing import Any

import pytest

from dlite.traces.trace import UnusableError, assistant_turns, make_trace, mended, tool_list, tool_of

ASK = {"role": "user", "content": "what?"}
SAY = {"role": "assistant", "content": "this."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "seen"}


def roles(*names: str) -> list[dict[str, str]]:
    return [{"role": name, "content": "x"} for name in names]


@pytest.mark.parametrize(
    ("messages", "places"),
    [
        (roles("user", "assistant"), (1,)),
        (roles("system", "user", "assistant", "user", "assistant"), (2, 4)),
        (roles("user"), (1,)),
        (roles("user", "assistant", "user"), (1, 3)),
        (roles("system", "assistant", "user", "assistant"), (3,)),
        (roles("user", "assistant", "tool", "tool", "assistant"), (1, 4)),
    ],
)
def test_the_assistant_writes_behind_others_and_at_an_open_end(messages: Any, places: tuple[int, ...]) -> None:
    assert assistant_turns(messages) == places
    assert make_trace("a", "l", messages).turns == places


def test_messages_keep_what_a_template_needs_and_nothing_else() -> None:
    noisy = {**CALL, "usage": {"cost": 1}, "function_call": None}
    trace = make_trace(
        "a", "l", [{"role": "developer", "content": [{"type": "text", "text": "be"}, " brief"]}, ASK, noisy, RESULT]
    )
    assert trace.messages[0] == {"role": "system", "content": "be brief"}
    assert trace.messages[2] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    }
    assert trace.messages[3] == RESULT


def test_the_older_function_call_is_a_tool_call() -> None:
    old = {"role": "assistant", "function_call": {"name": "look", "arguments": '{"a": 1}'}}
    trace = make_trace("a", "l", [ASK, old, {"role": "function", "name": "look", "content": "seen"}])
    assert tool_of(trace.messages[1]) == "look"
    assert trace.messages[2]["role"] == "tool"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no messages"),
        ("text", "no messages"),
        (["hello"], "a message that is not an object"),
        ([{"role": "robot", "content": ""}], "a message with an unknown role"),
        ([{"role": ["user"], "content": ""}], "a message with an unknown role"),
        ([{"role": "user", "content": 3}], "a message whose content is not text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a message with images"),
        ([{"role": "user", "content": [7]}], "a message with images"),
        ([ASK, {**SAY, "tool_calls": {"a": 1}}], "tool calls that are not a list"),
        ([ASK, {**SAY, "tool_calls": ["look"]}], "a tool call without a name"),
        ([ASK, {**SAY, "tool_calls": [{"function": {"name": "a", "arguments": [1]}}]}], "a tool call whose arguments"),
        ([SAY], "no turn for the assistant"),
    ],
)
def test_what_cannot_be_used_says_why_without_its_contents(messages: Any, reason: str) -> None:
    with pytest.raises(UnusableError, match=reason):
        make_trace("a", "l", messages)


def test_tools_come_as_a_list_or_as_its_json_and_bare_functions_are_wrapped() -> None:
    bare = {"name": "look", "parameters": {"type": "object"}}
    assert tool_list(None) == tool_list("") == []
    assert tool_list([bare]) == [{"type": "function", "function": bare}]
    assert tool_list('[{"type": "function", "function": {"name": "look"}}]')[0]["type"] == "function"
    for wrong in ("{not json", "[" * 100_000, {"a": 1}, ["look"]):
        with pytest.raises(UnusableError, match="tools that are not"):
            tool_list(wrong)


@pytest.mark.parametrize(
    ("message", "tool"),
    [
        (None, ""),
        (SAY, ""),
        ({**SAY, "content": "THOUGHT: so\n\n```bash\ncd /repo && grep -rn x .\n```"}, "bash: grep"),
        ({**SAY, "content": "```sh\nls -R\n```"}, "bash: ls"),
        ({**SAY, "content": "```bash\n(a)\n```"}, "bash"),
        ({**SAY, "content": "```python\nx\n```"}, ""),
        (CALL, "look"),
        ({**SAY, "tool_calls": [{"function": {"name": n}} for n in ("a", "b", "a")]}, "a, b"),
    ],
)
def test_what_a_turn_calls(message: Any, tool: str) -> None:
    assert tool_of(message) == tool


def test_half_a_surrogate_pair_does_not_stop_the_tokenizer() -> None:
    assert mended("a\ud800b") == "a\ufffd\ufffd\ufffdb"
    trace = make_trace("i\udfff", "l", [{"role": "user", "content": "\ud83d"}])
    assert (trace.id + trace.messages[0]["content"]).encode("utf-8")


def test_numbers_and_logged_answers() -> None:
    trace = make_trace("a", "l", [ASK, SAY, ASK])
    assert [trace.number(place) for place in trace.turns] == [1, 2]
    assert trace.logged(1) == SAY
    assert trace.logged(3) is None
