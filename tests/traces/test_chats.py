from __future__ import annotations

import json
from typing import Any

import pytest

from dlite.traces.chats import is_chat, is_sharegpt, read_chat, read_sharegpt
from dlite.traces.trace import UnusableError

ASK = {"role": "user", "content": "what?"}
ANSWER = {"role": "assistant", "content": "this."}
TOOL = {"type": "function", "function": {"name": "look"}}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": n, "type": "function", "function": {"name": "look", "arguments": f'{{"at": "{n}"}}'}} for n in "xy"
    ],
}
RESULTS = [{"role": "tool", "tool_call_id": n, "content": f"saw {n}"} for n in "xy"]


@pytest.mark.parametrize(
    "record",
    [
        {"request": {"messages": [ASK], "tools": [TOOL]}, "response": {"choices": [{"message": ANSWER}]}},
        {"body": {"messages": [ASK], "tools": [TOOL]}, "response": {"body": {"choices": [{"message": ANSWER}]}}},
        {"messages": [ASK], "tools": [TOOL], "response": "this."},
        {"messages": [ASK], "tools": [TOOL], "output": ANSWER},
        {"messages": [ASK], "tools": [TOOL], "choices": [{"message": ANSWER}]},
    ],
)
def test_a_request_and_its_response_are_one_turn(record: dict[str, Any]) -> None:
    assert is_chat(record)
    trace = read_chat({**record, "id": "c1"}, "log, line 1")
    assert (trace.id, trace.turns, trace.tools) == ("c1", (1,), (TOOL,))
    assert trace.messages == (ASK, ANSWER)


def test_parallel_calls_and_their_results_stay_in_order() -> None:
    record = {"request": {"messages": [ASK, CALLS, *RESULTS]}, "response": {"choices": []}}
    trace = read_chat(record, "log, line 7")
    assert trace.id == "log, line 7"
    assert trace.turns == (4,)  # no usable answer: the turn is still one to replay
    assert [m.get("tool_call_id") for m in trace.messages] == [None, None, "x", "y"]
    assert [c["function"]["arguments"] for c in trace.messages[1]["tool_calls"]] == ['{"at": "x"}', '{"at": "y"}']


def test_messages_alone_replay_every_answer() -> None:
    assert read_chat({"messages": [ASK, CALLS, *RESULTS, ANSWER, ASK, ANSWER]}, "x").turns == (1, 4, 6)


def test_sharegpt_with_calls() -> None:
    call = json.dumps({"name": "look", "arguments": {"at": "x"}})
    record = {
        "system": "be brief",
        "conversations": [
            {"from": "human", "value": "what?"},
            {"from": "function_call", "value": call},
            {"from": "observation", "value": "saw x"},
            {"from": "gpt", "value": "this."},
        ],
        "tools": json.dumps([{"name": "look"}]),
    }
    assert is_sharegpt(record)
    trace = read_sharegpt(record, "x")
    assert [m["role"] for m in trace.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert trace.messages[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "x"}}
    assert trace.turns == (2, 4)
    assert trace.tools == ({"type": "function", "function": {"name": "look"}},)


@pytest.mark.parametrize("text", ["look at x", "[1]", '"look"', None])
def test_a_function_call_that_is_none_stays_text(text: Any) -> None:
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": text}]}
    message = read_sharegpt(record, "x").messages[1]
    assert "tool_calls" not in message
    assert message["content"] == (text or "")


@pytest.mark.parametrize("speaker", ["robot", None, ["gpt"]])
def test_an_unknown_speaker_is_a_reason(speaker: Any) -> None:
    with pytest.raises(UnusableError, match="unknown role"):
        read_sharegpt({"conversations": [{"from": speaker, "value": "a"}]}, "x")


def test_what_is_no_chat() -> None:
    for record in ({}, {"messages": "a"}, {"request": {"prompt": "a"}}, {"request": [1]}):
        assert not is_chat(record)
