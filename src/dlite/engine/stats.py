"""Figures of decoding under one roof: acceptance length and acceptance by position (``dlite.types``), and loops."""

from __future__ import annotations

from collections.abc import Sequence

from dlite.types import acceptance_by_position, tau

__all__ = ["acceptance_by_position", "is_looping", "tau"]


def is_looping(ids: Sequence[int], *, window: int = 64, longest_period: int = 24) -> bool:
    """Degenerate repetition: the last ``window`` tokens repeat with a period of at most ``longest_period``.

    Such text inflates tau for every drafter, so it is left out of training and counted apart in reports.
    """
    tail = ids[-window:]
    if len(tail) < window:
        return False
    return any(
        all(tail[i] == tail[i - period] for i in range(period, window)) for period in range(1, longest_period + 1)
    )
