"""Anchors and labels against their loops, and what must never happen spelled out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlite.features import naive
from dlite.features.anchors import choose_anchors, labels, legal_anchors
from dlite.types import Conversation

MASKS = st.lists(st.booleans(), max_size=14)


def of(wrote: list[bool]) -> Conversation:
    """A conversation whose token at position t is 100 + t."""
    return Conversation("c", "s", tuple(range(100, 100 + len(wrote))), tuple(wrote), finished=True, looping=False)


@given(MASKS, st.integers(1, 5), st.booleans())
def test_legal_anchors_equal_the_loops(wrote: list[bool], K: int, whole: bool) -> None:
    assert legal_anchors(wrote, K, whole_blocks=whole) == naive.legal_anchors(wrote, K, whole_blocks=whole)


@given(MASKS, st.integers(1, 5))
def test_labels_equal_the_loops(wrote: list[bool], K: int) -> None:
    conversation = of(wrote)
    for anchor in legal_anchors(wrote, K, whole_blocks=False):
        assert labels(conversation, anchor, K) == naive.labels(conversation.ids, wrote, anchor, K)


def test_a_block_never_reaches_over_a_turn() -> None:
    wrote = [False, True, True, True, False, True, True]
    assert legal_anchors(wrote, 3, whole_blocks=False) == [1, 2, 5]
    assert legal_anchors(wrote, 3, whole_blocks=True) == [1, 2]
    assert [labels(of(wrote), a, 3) for a in (1, 2, 5)] == [[102, 103], [103], [106]]


def test_the_first_position_has_no_pivot() -> None:
    assert legal_anchors([True, True], 1, whole_blocks=False) == []
    assert legal_anchors([True, True, True], 1, whole_blocks=False) == [1]


def test_chosen_anchors_are_some_of_them_once_in_order_by_key() -> None:
    anchors = list(range(0, 90, 3))
    chosen = choose_anchors(anchors, 10, "a")
    assert len(chosen) == 10
    assert sorted(set(chosen) & set(anchors)) == chosen
    assert choose_anchors(anchors, 10, "a") == chosen != choose_anchors(anchors, 10, "b")
    assert choose_anchors(anchors, 30, "a") == anchors
