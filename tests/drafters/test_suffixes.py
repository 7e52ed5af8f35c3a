"""The automaton against plain loops: every count, every path, and bounds on time and memory that do not depend on luck."""

from __future__ import annotations

import random
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlite.drafters import naive, suffixes
from dlite.drafters.suffixes import DEPTH, Suffixes


def texts(words: int, longest: int) -> st.SearchStrategy[list[int]]:
    """Random texts, some of them with parts repeated."""
    token = st.integers(0, words - 1)
    part = st.lists(token, min_size=1, max_size=longest // 4)
    again = st.builds(lambda a, b, n: (a + b + a * n)[:longest], part, part, st.integers(0, 5))
    return st.lists(token, max_size=longest) | again


@settings(max_examples=150, deadline=None)
@given(text=texts(3, 45), K=st.integers(0, 9), depth=st.sampled_from([2, 5, 8, 64]), data=st.data())
def test_paths_are_those_of_the_naive_twin(text: list[int], K: int, depth: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffixes, "DEPTH", depth)
        tree = Suffixes()
        tree.extend(text)
        recent = data.draw(st.just(text) | texts(3, 12))
        found = tree.best(recent, K)
    expected = naive.suffix([text], recent, K, depth=depth, factor=suffixes.FACTOR, least=suffixes.LEAST)
    assert (list(found.tokens), found.score) == expected


@settings(max_examples=80, deadline=None)
@given(parts=st.lists(texts(3, 20), max_size=4), recent=texts(3, 12))
def test_nothing_spans_two_texts(parts: list[list[int]], recent: list[int]) -> None:
    tree = Suffixes()
    for part in parts:
        tree.extend([*part, -1 - len(tree.ids)])
    found = tree.best(recent, 8)
    expected = naive.suffix(parts, recent, 8, depth=DEPTH, factor=suffixes.FACTOR, least=suffixes.LEAST)
    assert (list(found.tokens), found.score) == expected


@settings(max_examples=100, deadline=None)
@given(text=texts(3, 40), depth=st.sampled_from([3, 64]))
def test_counts_are_counts(text: list[int], depth: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffixes, "DEPTH", depth)
        tree = Suffixes()
        tree.extend(text)
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + depth) + 1):
                part = text[start:end]
                state, size = tree.match(part)
                places = [i for i in range(len(part), len(text) + 1) if text[i - len(part) : i] == part]
                assert size == len(part)
                assert tree.count[state] == len(places)
                if len(part) < depth:
                    following = [text[i] for i in places if i < len(text)]
                    assert tree.followed[state] == len(following)
                    assert (tree.likely[state] >= 0) == bool(following)


def test_a_copy_goes_on_and_a_forked_path_loses_by_its_odds() -> None:
    tree = Suffixes()
    tree.extend([1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5])
    assert tree.best(tree.ids, 3) == suffixes.Path([6, 9, 1], 3.0, [1.0, 1.0, 1.0])
    tree.extend([8, 2, 3, 4, 5])  # after 5 came 6 and 8, the newer one wins
    assert tree.best(tree.ids, 3) == suffixes.Path([8, 2, 3], 1.5, [0.5, 1.0, 1.0])


def test_drafts_are_no_longer_than_the_match() -> None:
    tree = Suffixes()
    tree.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3])
    assert tree.best(tree.ids, 8).tokens == [4, 5]
    assert tree.best([0, 0, 3], 8).tokens == [4]
    assert tree.best([0, 0], 8).tokens == ()


TEXTS = {
    "words": lambda r, n: [int(r.paretovariate(0.7)) % 5000 for _ in range(n)],
    "a copy": lambda r, n: [r.randrange(5000) for _ in range(n // 2)] * 2,
    "one token": lambda r, n: [7] * n,
    "long runs": lambda r, n: [7 if r.random() < 0.97 else 8 for _ in range(n)],
    "coins": lambda r, n: [r.randrange(2) for _ in range(n)],
    "a beat with slips": lambda r, n: [i % 2 if r.random() < 0.95 else 5 for i in range(n)],
}


@pytest.mark.parametrize("kind", TEXTS)
def test_8k_tokens_are_searched_in_a_fraction_of_a_millisecond(kind: str) -> None:
    """Processor time of this thread, with room for a slow machine: 2 ms for the average of the worst text."""
    text = TEXTS[kind](random.Random(0), 8192)
    tree = Suffixes()
    tree.extend(text[:-64])
    extend = propose = 0.0
    for end in range(len(text) - 64, len(text)):
        start = thread_time()
        tree.extend(text[end : end + 1])
        middle = thread_time()
        tree.best(text[: end + 1], 32)
        extend, propose = extend + middle - start, propose + thread_time() - middle
    assert extend / 64 < 5e-4
    assert propose / 64 < 2e-3
    assert len(tree.after) <= 2 * len(text)
    assert tree.bytes() < 1000 * len(text)
