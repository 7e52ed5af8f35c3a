"""What reaches the target of a conversation: all of it, through its own template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlite.data.chat import TOOLS_HEADING, encode, next_turn_ids, render, user
from dlite.errors import DataError, TargetError
from dlite.target.toy import ToyTarget
from tests.data.support import PLAIN, TOOLS, make_tokenizer

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
ASK = {"role": "user", "content": "what?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}},
        {"function": {"name": "stop", "arguments": {}}},
    ],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "seen"}


def rendered(template: str | None, messages: list[Any], tools: list[Any] | None = None) -> str:
    tokenizer = make_tokenizer(template)
    text = tokenizer.decode(render(tokenizer, messages, tools))
    assert encode(tokenizer, text) == render(tokenizer, messages, tools)
    return text


def test_plain_messages() -> None:
    text = rendered(PLAIN, [{"role": "system", "content": "be"}, ASK])
    assert text == "<|start|>system\nbe<|end|>\n<|start|>user\nwhat?<|end|>\n<|start|>assistant\n"


def test_a_template_with_tools_gets_them_as_they_are() -> None:
    text = rendered(TOOLS, [ASK, CALL, RESULT], [TOOL])
    assert text.startswith("[TOOLS][{")
    assert '"name": "look"' in text.split("[/TOOLS]")[0]
    assert '<|start|>assistant\n[CALL look {"at": "é"}][CALL stop {}]<|end|>' in text
    assert "<|start|>tool\nseen<|end|>" in text
    assert TOOLS_HEADING not in text


@pytest.mark.parametrize("system", [None, "be brief"])
def test_a_template_without_tools_loses_nothing(system: str | None) -> None:
    messages = [ASK, CALL, RESULT] if system is None else [{"role": "system", "content": system}, ASK, CALL, RESULT]
    text = rendered(PLAIN, messages, [TOOL])
    head, rest = text.split("<|end|>\n", 1)
    wanted = f"{TOOLS_HEADING}\n<tools>\n{json.dumps(TOOL)}\n</tools>"
    assert head == "<|start|>system\n" + (wanted if system is None else f"{system}\n\n{wanted}")
    calls = [json.loads(part.split("</tool_call>")[0]) for part in rest.split("<tool_call>")[1:]]
    assert calls == [{"name": "look", "arguments": {"at": "é"}}, {"name": "stop", "arguments": {}}]
    assert rest.endswith("<|start|>tool\nseen<|end|>\n<|start|>assistant\n")


def test_text_beside_a_call_stays() -> None:
    text = rendered(PLAIN, [ASK, CALL | {"content": "let me see"}])
    assert "<|start|>assistant\nlet me see\n<tool_call>\n" in text


def test_arguments_that_are_not_json_are_kept() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "run", "arguments": "ls -l"}}]}
    assert '{"raw": "ls -l"}' in rendered(PLAIN, [ASK, call])


def test_content_parts_and_missing_content() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]}
    assert "<|start|>user\none two<|end|>" in rendered(PLAIN, [parts])
    assert "<|start|>user\n<|end|>" in rendered(PLAIN, [{"role": "user"}])


def test_parts_of_text_are_joined_in_whichever_form() -> None:
    parts = [{"type": "text", "value": "one"}, {"type": "input_text", "text": " two"}, " three", {"text": ""}]
    assert "<|start|>user\none two three<|end|>" in rendered(PLAIN, [{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "'image_url'"),
        ({"type": "input_audio", "input_audio": {"data": "x"}}, "'input_audio'"),
        ({"type": "text"}, "'text'"),
        (7, "'int'"),
    ],
)
def test_a_part_that_is_no_text_is_refused(part: Any, kind: str) -> None:
    """Once it was passed over, and the target answered a question about an image it never saw."""
    with pytest.raises(DataError, match=f"message 1 has a part of type {kind}. Expected parts of text"):
        render(make_tokenizer(PLAIN), [ASK, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}])


def test_what_ties_a_result_to_its_call_reaches_the_template() -> None:
    """Templates such as Mistral's name the call a result belongs to."""
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.id }}>{% endfor %}"
        "[{{ m.tool_call_id }}|{{ m.name }}]{% endfor %}"
    )
    result = RESULT | {"name": "look", "loss_weight": 0.5}
    one_call = CALL | {"tool_calls": CALL["tool_calls"][:1], "name": None}
    assert rendered(template, [ASK, one_call, result]) == "user:what?[|]assistant:<1>[|]tool:seen[1|look]"


@pytest.mark.parametrize("calls", ["look", 3, ["look"], [{"function": "look"}]])
def test_a_tool_call_that_is_none(calls: Any) -> None:
    with pytest.raises(DataError, match="message 1 has the tool call .*Expected an object with a function's name"):
        render(make_tokenizer(PLAIN), [ASK, CALL | {"tool_calls": calls}])


def test_the_next_turn_is_read_off_the_template() -> None:
    tokenizer = make_tokenizer(PLAIN)
    closing = tokenizer.decode(next_turn_ids(tokenizer, "and?"))
    assert closing == "<|end|>\n<|start|>user\nand?<|end|>\n<|start|>assistant\n"
    assert rendered(PLAIN, [ASK, {"role": "assistant", "content": "so"}, user("and?")]).endswith(f"so{closing}")


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[-1].content }}", "leaves out an answer that another turn follows. Expected one that shows it"),
        (
            "{% if messages | length > 1 %}{{ raise_exception('one turn only') }}{% endif %}",
            "refuses .*: one turn only",
        ),
    ],
)
def test_a_template_that_knows_one_turn_only_says_so(template: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        next_turn_ids(make_tokenizer(template), "and?")


def test_the_given_messages_are_left_alone() -> None:
    messages = [{"role": "system", "content": "be"}, ASK, CALL]
    before = json.dumps(messages)
    rendered(PLAIN, messages, [TOOL])
    assert json.dumps(messages) == before


def test_a_target_without_a_template_says_so() -> None:
    for tokenizer in (make_tokenizer(None), ToyTarget().tokenizer):
        with pytest.raises(TargetError, match="has no chat template.* --prompt and --raw"):
            render(tokenizer, [ASK])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "the list of messages is empty"),
        ([ASK, "hello"], 'message 1 is "hello". Expected an object'),
        ([{"content": "a"}], "message 0 is .* Expected an object with 'role'"),
        ([{"role": "user", "content": 3}], "message 0 has content of type int"),
    ],
)
def test_messages_that_are_not_messages(messages: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        render(make_tokenizer(PLAIN), messages)


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(DataError, match="refuses these messages: roles must alternate"):
        render(make_tokenizer("{{ raise_exception('roles must alternate') }}"), [ASK])
