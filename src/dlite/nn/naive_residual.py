"""Medusa's heads as loops over one hidden state."""

from __future__ import annotations

import torch
from torch import Tensor

from dlite.nn.residual import ResidualHeads


def residual_heads(model: ResidualHeads, hidden: Tensor) -> list[Tensor]:
    """hidden [D] -> one [D] a head."""
    K, D = model.bias.shape
    rows = []
    for k in range(K):
        step = model.heads.weight[k * D : (k + 1) * D] @ hidden + model.bias[k]
        rows.append(hidden + step / (1 + torch.exp(-step)))
    return rows
