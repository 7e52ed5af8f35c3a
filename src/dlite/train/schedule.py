"""What the number of a step decides: its stage, its share of the learning rate, the length of its blocks."""

from __future__ import annotations

import math
import random

from dlite.config import Recipe
from dlite.errors import ConfigError


def stage_ends(recipe: Recipe, steps_per_epoch: int) -> list[int]:
    """The number of steps done when each stage is over."""
    ends, total = [], 0
    for stage in recipe.stages:
        if (stage.steps is None) == (stage.epochs is None):
            raise ConfigError(f"stage {stage.name!r} needs exactly one of 'steps' and 'epochs'.")
        per_epoch = steps_per_epoch / recipe.train.accumulate
        total += stage.steps if stage.steps is not None else max(1, round((stage.epochs or 0) * per_epoch))
        ends.append(total)
    return ends


def lr_factor(step: int, steps: int, warmup: float, final: float) -> float:
    """Linear warm-up over ``warmup`` of the steps, then a cosine from 1 to ``final``."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def block_length(recipe: Recipe, number: int) -> int:
    """K, or for a share ``short_blocks`` of the batches a shorter block, which costs less."""
    chance = random.Random(f"{recipe.train.seed}-block-{number}")
    K = recipe.drafter.K
    return chance.randint(min(2, K), max(2, K // 2)) if chance.random() < recipe.train.short_blocks and K > 2 else K
