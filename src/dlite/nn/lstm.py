"""The LSTM cell that drafts from one hidden state, token by token, and forgets (OWL, 2510.07535)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Form = Literal["gelu", "tanh"]


@dataclass(frozen=True)
class LSTMState:
    """hidden [N,R]   cell [N,R]"""

    hidden: Tensor
    cell: Tensor


class LSTMCell(nn.Module):
    """f, i, o, n = W_s s + W_x x + b;  c = sigmoid(f) c + sigmoid(i) a(n);  s = sigmoid(o) a'(c)

    ``form`` "tanh": a = a' = tanh, the textbook cell. "gelu": both are GELU over an RMSNorm, as in the released Arctic
    speculators of the same authors.
    """

    def __init__(self, input_size: int, size: int, form: Form, eps: float = 1e-6) -> None:
        super().__init__()
        self.from_state = nn.Linear(size, 4 * size, bias=False)
        self.from_input = nn.Linear(input_size, 4 * size, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * size))
        self.inner, self.outer = _activation(form, size, eps), _activation(form, size, eps)

    def begin(self, hidden: Tensor) -> LSTMState:
        """The state before the first token: hidden [N,R] beside an empty cell."""
        return LSTMState(hidden, torch.zeros_like(hidden))

    def step(self, state: LSTMState, seen: Tensor) -> LSTMState:
        """The next state; seen [N,4R] is the input's share, ``from_input(x)``."""
        forget, add, show, new = (self.from_state(state.hidden) + seen + self.bias).chunk(4, -1)
        cell = torch.sigmoid(forget) * state.cell + torch.sigmoid(add) * self.inner(new)
        return LSTMState(torch.sigmoid(show) * self.outer(cell), cell)

    def forward(self, hidden: Tensor, inputs: Tensor) -> Tensor:
        """Hidden states behind each input: hidden [N,R] to begin with, inputs [N,K,D] -> [N,K,R]."""
        seen, state, states = self.from_input(inputs), self.begin(hidden), []
        for slot in range(inputs.shape[1]):
            state = self.step(state, seen[:, slot])
            states.append(state.hidden)
        return torch.stack(states, 1)


def _activation(form: Form, size: int, eps: float) -> nn.Module:
    return nn.Tanh() if form == "tanh" else nn.Sequential(nn.RMSNorm(size, eps=eps), nn.GELU())
