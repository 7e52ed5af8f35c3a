"""Figures of decoding under one roof: acceptance length and acceptance by position (``dlite.types``), and loops."""

from __future__ import annotations

from collections.abc import Sequence

from dlite.types import acceptance_by_position, tau

__all__ = ["acceptance_by_position", "is_looping", "tau"]


def is_looping(ids: Sequence[int]) -> bool:
    """Degenerate repetition: the end of an answer repeats with a period of at most 24 tokens.

    The end is its last 64 tokens, or two thirds of an answer shorter than 96, which then must repeat three times; an
    answer below 36 tokens is never called a loop. Such text inflates tau for every drafter, so it is left out of
    training and counted apart in reports.
    """
    window = min(64, 2 * len(ids) // 3)
    if window < 24:
        return False
    tail = ids[-window:]
    periods = range(1, (24 if window == 64 else window // 3) + 1)
    return any(all(tail[i] == tail[i - period] for i in range(period, window)) for period in periods)
