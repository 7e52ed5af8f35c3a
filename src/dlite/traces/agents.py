"""Logs of agents: mini-swe-agent, SWE-agent and tau-bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlite.traces.chats import record_id
from dlite.traces.trace import Trace, UnusableError, make_trace


def is_mini_swe(record: Mapping[str, Any]) -> bool:
    """``messages`` of one instance."""
    marked = "instance_id" in record or str(record.get("trajectory_format", "")).startswith("mini-swe-agent")
    return marked and isinstance(record.get("messages"), list)


def read_mini_swe(record: Mapping[str, Any], name: str) -> Trace:
    """Every assistant turn; what the shell said is a user turn, as the agent itself sends it."""
    messages = record["messages"]
    closing = messages and isinstance(messages[-1], Mapping) and messages[-1].get("role") == "exit"  # the agent's note
    return make_trace(str(record.get("instance_id") or name), "mini-swe-agent", messages[:-1] if closing else messages)


def is_swe_agent(record: Mapping[str, Any]) -> bool:
    """A ``trajectory`` of steps, mostly with the ``history`` that was sent."""
    return isinstance(record.get("trajectory"), list)


def read_swe_agent(record: Mapping[str, Any], name: str) -> Trace:
    """Every assistant turn of the history; without one, it is put together from the steps."""
    history = record.get("history")
    messages = [_entry(m) for m in history] if isinstance(history, list) and history else _steps(record["trajectory"])
    identity = str(record.get("instance_id") or name.removesuffix(".traj"))
    return make_trace(identity, "SWE-agent", messages, tools=record.get("tools"))


def is_tau_bench(record: Mapping[str, Any]) -> bool:
    """A ``traj`` of messages for one task."""
    return isinstance(record.get("traj"), list)


def read_tau_bench(record: Mapping[str, Any], name: str) -> Trace:
    """Every assistant turn. These logs do not hold the tools' descriptions."""
    trial = f"-{record['trial']}" if isinstance(record.get("trial"), int) else ""
    identity = f"task-{record_id(record, name)}{trial}"
    return make_trace(identity, "tau-bench", record["traj"], tools=record.get("tools"))


def _entry(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UnusableError("a message that is not an object")
    answered = message.get("tool_call_ids")
    first = answered[0] if isinstance(answered, Sequence) and answered else None
    return {**message, "tool_call_id": message.get("tool_call_id") or first}


def _steps(steps: Sequence[Any]) -> list[dict[str, Any]]:
    """The first step's query, then response and observation in turn."""
    messages: list[dict[str, Any]] = []
    for step in steps:
        if not isinstance(step, Mapping) or not isinstance(step.get("response"), str):
            raise UnusableError("a step without a response")
        if not messages:
            query = step.get("query")
            messages += [_entry(m) for m in query] if isinstance(query, list) else []
        messages.append({"role": "assistant", "content": step["response"]})
        messages.append({"role": "user", "content": step.get("observation") or ""})
    return messages[:-1]  # what the last step saw was never answered
