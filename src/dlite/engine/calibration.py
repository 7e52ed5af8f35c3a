"""Sequential temperature scaling: confidences whose running product is the chance that so many drafts are kept (2607.05147).

Position by position, left to right: T_i makes a_i = a_{i-1} sigmoid(z_i / T_i), the a of the positions before it already
calibrated, as likely as possible given which rounds had their first i drafts all accepted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GRID = 61  # temperatures tried between 0.1 and 10, and again between the two neighbours of the best
BINS = 10
LEAST = 1e-6


def fit(logits: Tensor, num_tokens: Tensor, accepted: Tensor) -> tuple[float, ...]:
    """Temperatures of K positions: confidence logits [M,K] of M rounds, drafts verified [M], drafts accepted [M].

    A position that no round reached keeps 1.
    """
    logits = logits.double()
    before, found = logits.new_ones(len(logits)), []
    for i in range(logits.shape[1]):
        real = num_tokens > i
        hit = (accepted > i)[real].double()
        best = 1.0
        if len(hit):
            low, high = 0.1, 10.0
            for _ in range(2):
                grid = torch.logspace(math.log10(low), math.log10(high), GRID, dtype=logits.dtype)
                chance = before[real] * (logits[real, i] / grid[:, None]).sigmoid()
                at = int(log_loss(chance, hit).argmin())
                best, low, high = (float(grid[j]) for j in (at, max(0, at - 1), min(GRID - 1, at + 1)))
        found.append(best)
        before = before * (logits[:, i] / best).sigmoid()
    return tuple(found)


def log_loss(chance: Tensor, hit: Tensor) -> Tensor:
    """Mean negative log likelihood of hit [M] under chance [...,M] -> [...]."""
    chance = chance.clamp(LEAST, 1 - LEAST)
    return -(hit * chance.log() + (1 - hit) * (1 - chance).log()).mean(-1)


def survival(logits: Tensor, temperatures: tuple[float, ...] | None = None) -> Tensor:
    """a_i, the running product of the confidences: [M,K] -> [M,K]."""
    scale = logits.new_tensor(temperatures) if temperatures else 1.0
    return (logits / scale).sigmoid().cumprod(1)


def calibration_error(chance: Tensor, num_tokens: Tensor, accepted: Tensor) -> list[float]:
    """Per position, how far the survival a_i [M,K] is from what happened: the mean over ten equal bins of
    |mean a_i - share of rounds with i drafts accepted|, weighted by rounds. 0 for a position that no round reached."""
    errors = []
    for i in range(chance.shape[1]):
        real = num_tokens > i
        a, hit = chance[real, i].double(), (accepted > i)[real].double()
        bins = (a * BINS).long().clamp(max=BINS - 1)
        gaps = torch.zeros(BINS, dtype=a.dtype).index_add(0, bins, a - hit)
        errors.append(float(gaps.abs().sum()) / max(1, len(a)))
    return errors
