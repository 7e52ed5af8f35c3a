"""Medusa's heads: each a residual step away from one and the same hidden state (2401.10774, section 2.1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ResidualHeads(nn.Module):
    """Head k of K: h + silu(W_k h + b_k). All heads are one product of the state."""

    def __init__(self, hidden_size: int, K: int) -> None:
        super().__init__()
        self.heads = nn.Linear(hidden_size, K * hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(K, hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [N,D] -> [N,K,D]."""
        steps = self.heads(hidden).unflatten(-1, self.bias.shape) + self.bias
        return hidden[:, None] + F.silu(steps)
