"""DSpark's heads as loops over one block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlite.nn.markov import Confidence, GatedCell, Markov, RNNCell


def markov(model: Markov, hidden: Sequence[Tensor], previous: Sequence[int]) -> list[Tensor]:
    """Bias [V] of each draft, from the token before it and, except in the vanilla form, the hidden row."""
    state = torch.zeros(model.rank, dtype=model.output_proj.weight.dtype)
    biases = []
    for h, token in zip(hidden, previous, strict=True):
        merged = word = model.prev_token_embedding.weight[token]
        if isinstance(model.cell, GatedCell):
            linear = model.cell.gate_proj
            merged = sigmoid(linear.weight @ torch.cat([h, word]) + linear.bias) * word
        elif isinstance(model.cell, RNNCell):
            linear, rank = model.cell.joint_proj, model.rank
            mixed = linear.weight @ torch.cat([state, word, h]) + linear.bias
            gate = sigmoid(mixed[:rank])
            state = gate * state + (1 - gate) * torch.tanh(mixed[rank : 2 * rank])
            merged = torch.tanh(mixed[2 * rank :])
        biases.append(model.output_proj.weight @ merged)
    return biases


def confidence(model: Confidence, markov: Markov, hidden: Tensor, previous: int) -> Tensor:
    """The chance that one draft is accepted."""
    seen = torch.cat([hidden, markov.prev_token_embedding.weight[previous]])
    return sigmoid(sum((w * x for w, x in zip(model.proj.weight[0], seen, strict=True)), model.proj.bias[0]))


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x)."""
    return 1 / (1 + torch.exp(-x))
