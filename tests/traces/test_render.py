"""Prompts through the target's own template; what it cannot say is said once, and a long text loses its middle."""

from __future__ import annotations

import pytest

from dlite.data.chat import render
from dlite.errors import TargetError
from dlite.traces.render import Renderer, features, mismatches, renderer
from dlite.traces.trace import Trace, UnusableError, make_trace
from tests.data.support import PLAIN, TOOLS, make_tokenizer

ASK, ANSWER = {"role": "user", "content": "what?"}, {"role": "assistant", "content": "this."}
CALLS = {
    "role": "assistant",
    "content": "see",
    "tool_calls": [{"id": n, "function": {"name": "look", "arguments": {"at": n}}} for n in "xy"],
}
RESULTS = [{"role": "tool", "tool_call_id": n, "content": f"saw {n}"} for n in "xy"]
TOOL = {"type": "function", "function": {"name": "look", "description": "looks"}}
STRICT = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('only users') }}{% endif %}"
    "<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
)
DEAF = "{% for m in messages %}{% if m.role != 'tool' %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"


def agent() -> Trace:
    return make_trace("a", "l", [ASK, CALLS, *RESULTS, ANSWER], tools=[TOOL])


def test_the_templates_own_rendering_with_tools() -> None:
    tokenizer = make_tokenizer(TOOLS)
    trace, rendering = agent(), renderer(tokenizer, plain=False)
    assert rendering.ids(trace, 4) == tuple(render(tokenizer, trace.messages[:4], trace.tools))
    assert mismatches(rendering, [trace]) == []


def test_plain_goes_around_a_template_that_refuses() -> None:
    tokenizer = make_tokenizer(STRICT)
    with pytest.raises(UnusableError, match="a turn that the target's chat template refuses"):
        renderer(tokenizer, plain=False).ids(agent(), 4)
    plain = renderer(tokenizer, plain=True)
    assert not plain.system
    text = tokenizer.decode(plain.ids(agent(), 4))
    assert "[" not in text.split("<tool_call>")[0].replace("<tools>", "")
    assert "saw x" in text
    assert "saw y" in text
    assert text.startswith("<|start|>user\nYou can call these functions.")


def test_what_a_template_cannot_say_is_said_once() -> None:
    notes = mismatches(renderer(make_tokenizer(STRICT), plain=False), [agent(), agent()])
    assert notes == sorted(set(notes), key=notes.index)
    assert any("refuses tool results: such turns are skipped. --plain" in note for note in notes)
    notes = mismatches(renderer(make_tokenizer(DEAF), plain=False), [agent()])
    assert any("leaves out tool results" in note for note in notes)
    assert any("leaves out parallel tool calls" in note for note in notes)
    notes = mismatches(renderer(make_tokenizer(PLAIN), plain=False), [agent()])
    assert any("has no place for tool calls: they are written as text" in note for note in notes)
    assert any("has no place for tools" in note for note in notes)
    assert any("does not know the role 'tool'" in note for note in notes)


def test_only_what_is_used_is_told() -> None:
    chat = make_trace("a", "l", [ASK, ANSWER, ASK])
    assert features(chat) == set()
    assert mismatches(renderer(make_tokenizer(STRICT), plain=False), [chat]) == []
    assert features(agent()) == {
        "tools", "tool calls", "parallel tool calls", "tool results", "words beside a tool call",
    }  # fmt: skip
    assert mismatches(renderer(make_tokenizer(STRICT), plain=True), [agent()]) == []


def test_a_target_without_a_template_needs_plain() -> None:
    tokenizer = make_tokenizer(None)
    with pytest.raises(TargetError, match="no chat template.*--plain"):
        renderer(tokenizer, plain=False)
    ids = renderer(tokenizer, plain=True).ids(make_trace("a", "l", [ASK]), 1)
    assert tokenizer.decode(list(ids)) == "User:\nwhat?\n\nAssistant:\n"


@pytest.mark.parametrize("limit", [60, 61, 200, 400])
def test_a_long_text_loses_its_middle_and_fits_exactly(limit: int) -> None:
    tokenizer = make_tokenizer(PLAIN)
    rendering = Renderer(tokenizer)
    content = "begin " + "".join(chr(97 + i % 26) for i in range(5000)) + " end?"
    trace = make_trace("a", "l", [{"role": "user", "content": content}], cut=0)
    shorter = rendering.fitted(trace, limit)
    length = len(rendering.ids(shorter, 1))
    assert limit - 10 <= length <= limit
    text = shorter.messages[0]["content"]
    assert text.startswith("begin abc")
    assert text.endswith(" end?")
    assert content.startswith(text[: len(text) // 2])
    assert content.endswith(text[len(text) // 2 + 1 :])


def test_what_fits_or_may_not_be_cut_stays_as_it_is() -> None:
    rendering = Renderer(make_tokenizer(PLAIN))
    short = make_trace("a", "l", [ASK], cut=0)
    assert rendering.fitted(short, 400) is short
    whole = make_trace("a", "l", [{"role": "user", "content": "x" * 999}])
    assert rendering.fitted(whole, 40) is whole
    with pytest.raises(UnusableError, match="too long for the context"):
        rendering.fitted(make_trace("a", "l", [{"role": "user", "content": "x" * 999}], cut=0), 25)
