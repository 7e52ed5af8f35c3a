"""The LSTM cell as loops over one row and its entries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dlite.nn.lstm import LSTMCell
from dlite.nn.naive import rms_norm


def lstm(model: LSTMCell, hidden: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Hidden state [R] behind each input [D], beginning with ``hidden`` and an empty cell."""
    R = len(hidden)
    cell = [torch.zeros((), dtype=hidden.dtype)] * R
    states = []
    for x in inputs:
        mixed = model.from_state.weight @ hidden + model.from_input.weight @ x + model.bias
        forget, add, show, new = (mixed[g * R : (g + 1) * R] for g in range(4))
        new = activation(model.inner, new)
        cell = [sigmoid(forget[j]) * cell[j] + sigmoid(add[j]) * new[j] for j in range(R)]
        shown = activation(model.outer, torch.stack(cell))
        hidden = torch.stack([sigmoid(show[j]) * shown[j] for j in range(R)])
        states.append(hidden)
    return states


def activation(module: nn.Module, x: Tensor) -> Tensor:
    """tanh, or RMSNorm and GELU: x times the share of a normal distribution below it."""
    if isinstance(module, nn.Tanh):
        return (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))
    if isinstance(module, nn.Sequential) and isinstance(module[0], nn.RMSNorm):
        x = rms_norm(module[0], x)
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    raise TypeError(f"{module} is neither of the cell's two activations")


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return 1 / (1 + torch.exp(-x))
