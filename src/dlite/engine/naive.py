"""The calibration of ``calibration`` as plain loops over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlite.engine.calibration import BINS, LEAST


def log_loss(
    logits: Sequence[Sequence[float]], temperatures: Sequence[float], rounds: Sequence[tuple[int, int]]
) -> float:
    """That of the last position that has a temperature; rounds: (drafts verified, accepted)."""
    i, total, count = len(temperatures), 0.0, 0
    for row, (verified, accepted) in zip(logits, rounds, strict=True):
        if verified >= i:
            chance = 1.0
            for z, t in zip(row, temperatures, strict=False):
                chance /= 1 + math.exp(-z / t)
            chance = min(max(chance, LEAST), 1 - LEAST)
            total -= math.log(chance) if accepted >= i else math.log(1 - chance)
            count += 1
    return total / count


def calibration_error(chances: Sequence[float], hits: Sequence[bool]) -> float:
    """Of one position."""
    total = 0.0
    for low in range(BINS):
        inside = [(a, hit) for a, hit in zip(chances, hits, strict=True) if min(int(a * BINS), BINS - 1) == low]
        total += abs(sum(a for a, _ in inside) - sum(hit for _, hit in inside))
    return total / max(1, len(chances))
