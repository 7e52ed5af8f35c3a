"""What is judged on shares no conversation with what is trained on, however the log repeats it."""

from __future__ import annotations

from dlite.adapt.split import SplitSettings, group, held_groups
from dlite.traces.trace import make_trace
from tests.audit.support import agent_trace

ASK = {"role": "user", "content": "what is it?"}
SAID = {"role": "assistant", "content": "that"}


def test_requests_of_one_conversation_are_one_group() -> None:
    """A server logs every request with the whole history."""
    first = make_trace("a", "chat log", [ASK, SAID], turns=(1,))
    later = make_trace("b", "chat log", [ASK, SAID, {"role": "user", "content": "and?"}], turns=(3,))
    other = make_trace("c", "chat log", [{"role": "user", "content": "who?"}, SAID])
    assert group(first) == group(later) != group(other)


def test_questions_about_one_text_are_one_group() -> None:
    text = "x" * 3000
    one, two = (make_trace(q, "LoCoMo", [{"role": "user", "content": f"{text}{q}"}], cut=0) for q in "ab")
    assert group(one) == group(two)
    apart = (make_trace(q, "chat log", [{"role": "user", "content": f"{text}{q}"}]) for q in "ab")
    assert len({group(trace) for trace in apart}) == 2


def test_the_share_is_held_out_and_the_seed_decides_which() -> None:
    traces = [agent_trace(f"t{i}", 2) for i in range(20)]
    chosen = [held_groups(traces, SplitSettings(seed=seed)) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[0]) == 4
    assert len(held_groups(traces[:2], SplitSettings(held_out=0.01))) == 1
    assert held_groups(traces[::-1], SplitSettings()) == chosen[0]
