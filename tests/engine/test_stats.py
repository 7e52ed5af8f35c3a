"""The figures, on rounds small enough to count by hand."""

from __future__ import annotations

import pytest

from dlite.engine.stats import acceptance_by_position, is_looping, tau
from dlite.types import Round


def rounds(*counts: tuple[int, int, int]) -> list[Round]:
    """Rounds from (proposed, accepted, committed)."""
    return [Round(proposed, accepted, committed, 0) for proposed, accepted, committed in counts]


def test_tau_counts_what_was_committed_over_all_rounds() -> None:
    """Bonus included, cut at the end, and micro-averaged: not a mean of means."""
    assert tau(rounds((7, 2, 3), (7, 0, 1), (7, 7, 8), (7, 5, 2))) == 14 / 4
    assert tau([]) == 0
    assert tau(iter(rounds((0, 0, 1)))) == 1


def test_acceptance_by_position_counts_only_rounds_that_reach_it() -> None:
    assert acceptance_by_position(rounds((3, 3, 4), (3, 1, 2), (1, 0, 1), (0, 0, 1))) == [2 / 3, 1 / 2, 1 / 2]
    assert acceptance_by_position([]) == []


@pytest.mark.parametrize("period", [1, 5, 24])
def test_repetition_is_seen_up_to_its_longest_period(period: int) -> None:
    ids = [1000 + i for i in range(40)] + [i % period for i in range(64)]
    assert is_looping(ids)
    assert not is_looping([*ids[:-30], -1, *ids[-29:]])


def test_longer_periods_and_short_texts_are_no_loops() -> None:
    assert not is_looping([i % 25 for i in range(200)])
    assert not is_looping([1] * 35)


def test_a_short_answer_that_ends_in_a_loop_is_one() -> None:
    """An agent's 64-token answer: 20 tokens of text, then the same words until the limit."""
    assert is_looping([*range(100, 120), *([1, 2, 3] * 15)][:64])
    assert not is_looping([*range(100, 140), *([1, 2, 3] * 8)])
