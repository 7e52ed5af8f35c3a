"""One definition of every figure: acceptance length, acceptance by position, where the time went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dlite.types import Round


def tau(rounds: Iterable[Round]) -> float:
    """Acceptance length: tokens committed per round, bonus included, cut at the end, prefill's own token excluded.

    Micro-averaged: sum of tokens over sum of rounds. 0 for no rounds. At most K + 1.
    """
    committed = count = 0
    for item in rounds:
        committed += item.committed
        count += 1
    return committed / count if count else 0.0


def acceptance_by_position(rounds: Sequence[Round]) -> list[float]:
    """Entry i - 1: the share of rounds with at least i drafts in which the first i were all accepted."""
    longest = max((r.proposed for r in rounds), default=0)
    shares = []
    for i in range(1, longest + 1):
        tried = [r for r in rounds if r.proposed >= i]
        shares.append(sum(r.accepted >= i for r in tried) / len(tried))
    return shares


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
