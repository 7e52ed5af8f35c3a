"""Key-values of finished requests, so that the next turn of a conversation computes only what is new.

A history-free drafter needs nothing from here: at least one position is always recomputed, and its taps are all
the drafter reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlite.target.base import Cache


@dataclass(frozen=True)
class Kept:
    """One sequence and its exported key-values."""

    tokens: tuple[int, ...]
    saved: Any


class PrefixCache:
    """Keeps the last ``entries`` sequences and restores the longest shared prefix."""

    def __init__(self, entries: int = 4) -> None:
        self._kept: deque[Kept] = deque(maxlen=entries)
        self.restored_tokens = 0

    def keep(self, tokens: Sequence[int], cache: Cache, row: int) -> None:
        """Remember what row ``row`` has computed for ``tokens``."""
        length = min(len(tokens), cache.lengths[row])
        self._kept.append(Kept(tuple(tokens[:length]), cache.export(row, length)))

    def restore(self, tokens: Sequence[int], cache: Cache, row: int) -> int:
        """Fill row ``row`` with the longest known prefix of ``tokens``, short of its last; returns its length."""
        best, length = None, 0
        for kept in self._kept:
            shared = common_prefix(kept.tokens, tokens[:-1])
            if shared > length:
                best, length = kept, shared
        if best is not None:
            cache.restore(row, best.saved, length)
            self.restored_tokens += length
        return length


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))
