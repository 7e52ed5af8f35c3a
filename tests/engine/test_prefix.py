"""The prefix cache restores the longest shared prefix, and always leaves a position to compute."""

from __future__ import annotations

from dlite.engine.prefix import PrefixCache, common_prefix
from dlite.target.toy import ToyCache


def holding(*sequences: list[int], entries: int = 4) -> PrefixCache:
    """A prefix cache that has seen these sequences finish."""
    prefix = PrefixCache(entries)
    for ids in sequences:
        cache = ToyCache(1)
        cache.tokens[0], cache.lengths[0] = list(ids), len(ids)
        prefix.keep(ids, cache, 0)
    return prefix


def test_the_longest_shared_prefix_is_restored() -> None:
    prefix, cache = holding([1, 2, 9], [1, 2, 3, 4, 9], [1, 7]), ToyCache(2)
    assert prefix.restore([1, 2, 3, 4, 5, 6], cache, 1) == 4
    assert (cache.tokens[1], cache.lengths) == ([1, 2, 3, 4], [0, 4])
    assert prefix.restored_tokens == 4


def test_the_last_position_is_left_to_compute() -> None:
    """Its taps are what the drafter reads, and they are not stored."""
    cache = ToyCache(1)
    assert holding([1, 2, 3, 4]).restore([1, 2, 3], cache, 0) == 2


def test_nothing_shared_restores_nothing() -> None:
    cache = ToyCache(1)
    assert holding([1, 2]).restore([2, 1], cache, 0) == 0
    assert (cache.tokens[0], cache.lengths[0]) == ([], 0)


def test_only_what_was_computed_is_kept() -> None:
    prefix, cache = PrefixCache(), ToyCache(1)
    cache.tokens[0], cache.lengths[0] = [1, 2, 8, 8], 2  # two rejected drafts behind the computed positions
    prefix.keep([1, 2, 3], cache, 0)
    assert prefix.restore([1, 2, 3, 4], ToyCache(1), 0) == 2


def test_the_oldest_is_forgotten() -> None:
    prefix = holding([1, 1, 1], [2, 2, 2], [3, 3, 3], entries=2)
    restored = [prefix.restore([first, first, 0], ToyCache(1), 0) for first in (1, 2, 3)]
    assert restored == [0, 2, 2]


def test_common_prefix() -> None:
    assert [common_prefix(*pair) for pair in (("", "a"), ("ab", "ab"), ("abc", "abd"), ("ab", "abc"))] == [0, 2, 2, 2]
