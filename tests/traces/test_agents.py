from __future__ import annotations

from typing import Any

import pytest

from dlite.traces.agents import (
    is_mini_swe,
    is_swe_agent,
    is_tau_bench,
    read_mini_swe,
    read_swe_agent,
    read_tau_bench,
)  # fmt: skip
from dlite.traces.trace import UnusableError

SYSTEM, ASK = {"role": "system", "content": "be"}, {"role": "user", "content": "fix it"}
STEP = {"role": "assistant", "content": "```bash\nls\n```"}
SEEN = {"role": "user", "content": "<output>a</output>"}


def test_mini_swe_agent() -> None:
    record = {"instance_id": "repo__1", "messages": [SYSTEM, ASK, STEP, SEEN, STEP, {"role": "exit", "content": ""}]}
    assert is_mini_swe(record)
    trace = read_mini_swe(record, "x")
    assert (trace.id, trace.layout, trace.turns) == ("repo__1", "mini-swe-agent", (2, 4))
    assert is_mini_swe({"trajectory_format": "mini-swe-agent-1", "messages": []})


def test_swe_agent_by_its_history() -> None:
    history: list[Any] = [
        {**SYSTEM, "agent": "main", "message_type": "system_prompt"},
        {"role": "user", "content": [{"type": "text", "text": "fix it"}], "agent": "main"},
        {
            "role": "assistant",
            "content": "look",
            "tool_calls": [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_ids": ["c"]},
    ]
    trace = read_swe_agent({"trajectory": [], "history": history, "info": {}}, "repo__2.traj")
    assert (trace.id, trace.turns) == ("repo__2", (2, 4))
    assert trace.messages[3] == {"role": "tool", "content": "a", "tool_call_id": "c"}


def test_swe_agent_by_its_steps() -> None:
    steps = [
        {"query": [SYSTEM, ASK], "response": "first", "observation": "a"},
        {"response": "second", "observation": "b"},
    ]
    assert is_swe_agent({"trajectory": steps})
    trace = read_swe_agent({"trajectory": steps}, "x")
    assert [m["content"] for m in trace.messages] == ["be", "fix it", "first", "a", "second"]
    assert trace.turns == (2, 4)
    for broken in ([{"action": "ls"}], ["ls"]):
        with pytest.raises(UnusableError, match="a step without a response"):
            read_swe_agent({"trajectory": broken}, "x")


def test_tau_bench() -> None:
    record = {
        "task_id": 3,
        "trial": 1,
        "reward": 1.0,
        "info": {},
        "traj": [SYSTEM, ASK, {"role": "assistant", "content": "hello"}],
    }
    assert is_tau_bench(record)
    trace = read_tau_bench(record, "x")
    assert (trace.id, trace.layout, trace.turns) == ("task-3-1", "tau-bench", (2,))


@pytest.mark.parametrize("messages", [[], ["a"], [None]])
def test_broken_logs_are_reasons(messages: list[Any]) -> None:
    for read, record in (
        (read_mini_swe, {"instance_id": "a", "messages": messages}),
        (read_tau_bench, {"traj": messages}),
        (read_swe_agent, {"trajectory": [], "history": messages}),
    ):
        with pytest.raises(UnusableError):
            read(record, "x")
