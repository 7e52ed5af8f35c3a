"""Key-values of finished requests, so that the next turn of a conversation computes only what is new.

A history-free drafter needs nothing from here: at least one position is always recomputed, and its taps are all
the drafter reads. The memory of any other drafter is kept and restored beside the key-values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlite.drafters.base import Memory
from dlite.target.base import Cache


@dataclass(frozen=True)
class Kept:
    """One sequence and its exported key-values."""

    tokens: tuple[int, ...]
    saved: Any
    memory: Any


class PrefixCache:
    """Keeps the last ``entries`` sequences and restores the longest shared prefix."""

    def __init__(self, entries: int = 4) -> None:
        self._kept: deque[Kept] = deque(maxlen=entries)
        self.restored_tokens = 0

    def keep(self, tokens: Sequence[int], cache: Cache, row: int, memory: Memory | None = None) -> None:
        """Remember what row ``row`` has computed for ``tokens``."""
        length = min(len(tokens), cache.lengths[row])
        remembered = None if memory is None else memory.export(row, length)
        self._kept.append(Kept(tuple(tokens[:length]), cache.export(row, length), remembered))

    def restore(self, tokens: Sequence[int], cache: Cache, row: int, memory: Memory | None = None) -> int:
        """Fill row ``row`` with the longest known prefix of ``tokens``, short of its last; returns its length."""
        best, length = None, 0
        for kept in self._kept:
            shared = common_prefix(kept.tokens, tokens[:-1])
            if shared > length:
                best, length = kept, shared
        length = max(0, length - (memory.overlap if memory else 0))
        if best is not None and length:
            cache.restore(row, best.saved, length)
            if memory is not None:
                memory.restore(row, best.memory, length)
            self.restored_tokens += length
        return length


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))
