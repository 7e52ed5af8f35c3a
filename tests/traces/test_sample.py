from __future__ import annotations

import pytest

from dlite.errors import ConfigError
from dlite.traces.sample import sample
from dlite.traces.trace import Trace, make_trace


def make(count: int) -> list[Trace]:
    return [make_trace(f"t{i}", "l", [{"role": "user", "content": str(i)}]) for i in range(count)]


def test_the_same_for_the_same_seed_and_another_for_another() -> None:
    traces = make(50)
    first = [t.id for t in sample(iter(traces), 5, 0)]
    assert first == [t.id for t in sample(traces, 5, 0)]
    assert first != [t.id for t in sample(traces, 5, 1)]
    assert len(set(first)) == 5


def test_a_smaller_sample_is_the_start_of_a_larger_one() -> None:
    assert sample(make(50), 3, 4) == sample(make(50), 20, 4)[:3]
    assert sorted(t.id for t in sample(make(4), 9, 0)) == ["t0", "t1", "t2", "t3"]


def test_equal_ids_are_told_apart() -> None:
    same = [make_trace("a", "l", [{"role": "user", "content": str(i)}]) for i in range(3)]
    assert [t.id for t in sample(same, 3, 0)] == ["a", "a (2)", "a (3)"]


def test_none_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="the number of traces is 0"):
        sample([], 0, 0)
