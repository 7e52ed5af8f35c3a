from __future__ import annotations

from typing import Any

import pytest

from dlite.audit.turns import TOO_LONG, TOO_SHORT, Choice, choose_turns
from dlite.errors import ConfigError
from dlite.traces.render import Renderer
from dlite.traces.skipped import Skipped
from dlite.traces.trace import make_trace
from tests.data.support import TOOLS, make_tokenizer

from .support import agent_trace

RENDERING = Renderer(make_tokenizer(TOOLS))


def choose(traces: Any, max_calls: int, per_trace: int, low: int = 0, high: int = 9999) -> tuple[list[Any], Skipped]:
    skipped = Skipped()
    return choose_turns(traces, RENDERING, Choice(max_calls, per_trace, low, high), skipped), skipped


def test_turns_are_spread_over_each_conversation() -> None:
    turns, skipped = choose([agent_trace("a", 9), agent_trace("b", 9), agent_trace("c", 9)], 6, 3)
    assert [(t.trace, t.number) for t in turns] == [(n, k) for n in "ab" for k in (1, 5, 9)]
    assert len({t.id for t in turns}) == 6
    assert skipped.total == 0


def test_longer_conversations_make_up_for_shorter_ones() -> None:
    turns, _ = choose([agent_trace("a", 1), agent_trace("b", 9)], 6, 3)
    assert [t.trace for t in turns] == ["a", *"bbbbb"]
    turns, _ = choose([agent_trace("a", 2)], 6, 3)
    assert [t.number for t in turns] == [1, 2]
    assert [t.number for t in choose([agent_trace("a", 5)], 1, 3)[0]] == [5]


def test_only_turns_within_the_range_and_the_others_are_counted() -> None:
    trace = agent_trace("a", 9)
    lengths = [len(RENDERING.ids(trace, place)) for place in trace.turns]
    low, high = lengths[2], lengths[6]
    turns, skipped = choose([trace], 9, 9, low, high)
    assert [len(t.ids) for t in turns] == lengths[2:7]
    assert skipped.counts == {TOO_SHORT: 2, TOO_LONG: 2}
    turns, skipped = choose([trace], 9, 9, 0, 20)
    assert turns == []
    assert skipped.counts == {TOO_LONG: 9}


def test_a_turn_knows_what_came_before_and_what_the_log_did() -> None:
    trace = agent_trace("a", 3)
    first, second, third = choose([trace], 3, 3)[0]
    assert first.before == ()
    assert second.before == RENDERING.ids(trace, trace.turns[0] + 1)
    assert third.ids[: len(second.ids)] == second.ids
    shared = sum(1 for a, b in zip(second.before, second.ids, strict=False) if a == b)
    assert shared > len(first.ids)
    assert [t.tool for t in (first, second, third)] == ["bash: ls", "bash: grep", "bash: ls"]
    assert first.logged == len(trace.messages[2]["content"])


def test_long_documents_are_cut_and_marked() -> None:
    trace = make_trace("d", "LongBench v2", [{"role": "user", "content": "x" * 999}], cut=0)
    (turn,) = choose([trace], 1, 1, 0, 200)[0]
    assert turn.cut
    assert len(turn.ids) <= 200
    assert not choose([trace], 1, 1)[0][0].cut


def test_a_conversation_that_cannot_be_rendered_is_counted() -> None:
    rendering = Renderer(make_tokenizer("{{ raise_exception('no') }}"))
    skipped = Skipped()
    assert choose_turns([agent_trace("a", 3)], rendering, Choice(3, 3, 0, 999), skipped) == []
    assert skipped.total == 1
    assert "chat template refuses" in skipped.sentence()


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ((0, 1, 0, 9), "0 calls, 1 a trace"),
        ((1, 0, 0, 9), "1 calls, 0 a trace"),
        ((1, 1, 9, 3), "range is 9 to 3"),
        ((1, 1, 0, -5), "0 to -5"),
    ],
)
def test_choices_that_make_no_sense(choice: tuple[int, int, int, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Choice(*choice)
