"""The n-gram index against plain loops, and how the drafter behaves in the engine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlite.drafters import load_drafter, naive
from dlite.drafters.ngram import NGram, NGramIndex
from dlite.engine.request import Request
from dlite.errors import DliteError
from dlite.target.toy import ToyTarget
from tests.support import decode, plain


@settings(max_examples=200, deadline=None)
@given(text=st.lists(st.integers(0, 3), max_size=30), K=st.integers(0, 9))
def test_continuations_are_those_of_the_naive_twin(text: list[int], K: int) -> None:
    index = NGramIndex()
    for end in range(len(text) + 1):
        assert index.continuation(K) == naive.ngram(text[:end], K)
        index.extend(text[end : end + 1])


def test_the_longest_match_wins_then_the_most_recent() -> None:
    index = NGramIndex()
    index.extend([1, 2, 3, 4, 9, 2, 3, 5, 8, 3, 6, 1, 2, 3])
    assert index.continuation(3) == [4, 9, 2]
    index.extend([7, 2, 3])
    assert index.continuation(3) == [7, 2, 3]


def test_a_text_that_repeats_itself_is_drafted() -> None:
    target = ToyTarget(vocab_size=6, sharpness=50.0, stop=False)
    request = Request((1, 2), 60)
    found = decode(target, NGram(), [request])[0]
    assert found.token_ids == plain(target, [request])[0].token_ids
    assert found.tau > 3
    assert all(round.proposed <= 7 for round in found.rounds)


@pytest.mark.parametrize("length", [1000, 8192, 22000])
def test_state_bytes_are_about_what_is_kept(length: int) -> None:
    memory = NGram().new_memory(2)
    memory.texts[0].extend([300 + i * i % 1009 for i in range(length // 4)] * 4)
    memory.texts[1].extend(range(300, 300 + length))
    assert memory.bytes(0) < NGram().state_bytes(length) < memory.bytes(1) < 700 * length


def test_it_takes_no_argument() -> None:
    with pytest.raises(DliteError, match="takes nothing behind its name"):
        load_drafter("ngram:3", ToyTarget())
