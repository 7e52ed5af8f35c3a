"""Random weights for small networks."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def randomise(model: M, *, seed: int = 0, scale: float = 0.4) -> M:
    """Every weight drawn anew, norms and biases included; also seeds what the test draws next."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(scale * torch.randn_like(weight) + (weight.dim() == 1))
    return model
