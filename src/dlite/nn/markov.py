"""DSpark's heads: a low-rank bias from the token before, in three forms, and the confidence (2607.05147).

Everything that is as long as the vocabulary is one product of rank R a draft; the cells differ in what they multiply.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Cell = Literal["vanilla", "gated", "rnn"]


class Markov(nn.Module):
    """A bias W2 u_i on the logits of draft i, with u_i from the row W1[p] of the token before it by one of the cells.

    ``vocab_out`` may be a reduced draft vocabulary and ``vocab_prev`` the rows of the previous-token table.
    """

    def __init__(self, cell: Cell, hidden_size: int, rank: int, vocab_out: int, vocab_prev: int) -> None:
        super().__init__()
        self.rank = rank
        self.prev_token_embedding = nn.Embedding(vocab_prev, rank)
        self.output_proj = nn.Linear(rank, vocab_out, bias=False)
        self.cell = CELLS[cell](hidden_size, rank)

    def initial_state(self, rows: int) -> Tensor:
        """s_0 = 0, [N,R]."""
        return self.prev_token_embedding.weight.new_zeros(rows, self.rank)

    def words(self, previous: Tensor) -> Tensor:
        """W1[p]: previous [...] -> [...,R]."""
        return self.prev_token_embedding(previous)  # type: ignore[no-any-return]

    def step(self, state: Tensor, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The next state [N,R] and the bias [N,V] from the state [N,R], words [N,R] and hidden [N,D]."""
        state, merged = self.cell(state, words, hidden)
        return state, self.output_proj(merged)

    def forward(self, words: Tensor, hidden: Tensor) -> Tensor:
        """Teacher-forced bias: words [N,K,R], the anchor's first, and hidden [N,K,D] -> [N,K,V]."""
        state, parts = self.initial_state(len(hidden)), []
        for i in range(hidden.shape[1]):
            state, merged = self.cell(state, words[:, i], hidden[:, i])
            parts.append(merged)
        return self.output_proj(torch.stack(parts, 1))  # type: ignore[no-any-return]


class VanillaCell(nn.Module):
    """u = W1[p]."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()

    def forward(self, state: Tensor, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return state, words


class GatedCell(nn.Module):
    """u = sigmoid(W [h ; W1[p]] + b) * W1[p]."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size + rank, rank)

    def forward(self, state: Tensor, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return state, torch.sigmoid(self.gate_proj(torch.cat([hidden, words], -1))) * words


class RNNCell(nn.Module):
    """g, c, o = split(W [s ; W1[p] ; h] + b);  u = tanh(o);  s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c)."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)

    def forward(self, state: Tensor, words: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        gate, candidate, out = self.joint_proj(torch.cat([state, words, hidden], -1)).chunk(3, -1)
        return torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate)), torch.tanh(out)


CELLS = {"vanilla": VanillaCell, "gated": GatedCell, "rnn": RNNCell}


class Confidence(nn.Module):
    """Logit of the chance that a draft is accepted: w [h ; W1[p]] + b. It looks at what came before the draft only."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.proj = nn.Linear(hidden_size + rank, 1)

    def forward(self, words: Tensor, hidden: Tensor) -> Tensor:
        """words [...,R], hidden [...,D] -> [...]."""
        return self.proj(torch.cat([hidden, words], -1)).squeeze(-1)  # type: ignore[no-any-return]
