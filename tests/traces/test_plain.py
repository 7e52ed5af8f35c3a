from __future__ import annotations

from dlite.data.chat import TOOLS_HEADING
from dlite.traces.plain import plain_messages, plain_text
from dlite.traces.trace import make_trace

ASK = {"role": "user", "content": "what?"}
CALLS = {
    "role": "assistant",
    "content": "let me see",
    "tool_calls": [
        {"id": "x", "function": {"name": "look", "arguments": '{"at": "é"}'}},
        {"id": "y", "function": {"name": "stop", "arguments": {"now": True}}},
    ],
}
RESULTS = [{"role": "tool", "tool_call_id": n, "content": f"saw {n}"} for n in "xy"]
SYSTEM = {"role": "system", "content": "be brief"}


def test_calls_become_words_and_parallel_results_one_user_turn() -> None:
    messages = make_trace("a", "l", [ASK, CALLS, *RESULTS]).messages
    assert plain_messages(messages) == [
        ASK,
        {
            "role": "assistant",
            "content": 'let me see\n<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "stop", "arguments": {"now": true}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\nsaw x\n</tool_response>\n\n<tool_response>\nsaw y\n</tool_response>",
        },
    ]


def test_roles_alternate_and_only_the_first_may_be_system() -> None:
    said = plain_messages([SYSTEM, ASK, ASK, {"role": "system", "content": "hurry"}, CALLS | {"tool_calls": []}])
    assert [m["role"] for m in said] == ["system", "user", "assistant"]
    assert said[1]["content"] == "what?\n\nwhat?\n\nhurry"


def test_tools_stand_in_the_system_message_or_in_the_first_user_turn() -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    said = plain_messages([SYSTEM, ASK], [tool])
    assert said[0]["content"].startswith(f"be brief\n\n{TOOLS_HEADING}\n<tools>\n" + '{"type"')
    assert plain_messages([ASK], [tool])[0]["role"] == "system"
    (only,) = plain_messages([SYSTEM, ASK], [tool], system=False)
    assert only["role"] == "user"
    assert only["content"].startswith("be brief\n\n" + TOOLS_HEADING)
    assert only["content"].endswith("what?")


def test_text_for_targets_without_a_template() -> None:
    assert plain_text([SYSTEM, ASK]) == "System:\nbe brief\n\nUser:\nwhat?\n\nAssistant:\n"
