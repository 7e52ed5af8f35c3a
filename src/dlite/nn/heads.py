"""Heads that turn the block's hidden states into draft logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LowRankRNN(nn.Module):
    """DLite's sequential head: order inside the block, one vocabulary product of rank R per draft token.

    g, c = split(W_state [s ; E_R[p]] + b);  s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c)
    u = W_merge [s ; h] + b;  logits = W_out u          (arXiv 2610.23787, section 3)

    ``vocab_out`` may be a reduced draft vocabulary and ``vocab_prev`` the rows of the previous-token table.
    """

    def __init__(self, hidden_size: int, rank: int, vocab_out: int, vocab_prev: int) -> None:
        super().__init__()
        self.rank = rank
        self.prev_token_embedding = nn.Embedding(vocab_prev, rank)
        self.output_proj = nn.Linear(rank, vocab_out, bias=False)
        self.state_proj = nn.Linear(2 * rank, 2 * rank)
        self.state_hidden_mlp = nn.Linear(rank + hidden_size, rank)

    def initial_state(self, rows: int) -> Tensor:
        """s_0 = 0, [N,R]."""
        return self.prev_token_embedding.weight.new_zeros(rows, self.rank)

    def step(self, state: Tensor, previous: Tensor) -> Tensor:
        """The next state from the previous token's row: state [N,R], previous [N] -> [N,R]."""
        gate, candidate = self.state_proj(torch.cat([state, self.prev_token_embedding(previous)], dim=-1)).chunk(2, -1)
        return torch.lerp(torch.tanh(candidate), state, torch.sigmoid(gate))

    def hidden_part(self, hidden: Tensor) -> Tensor:
        """The merge's share of the hidden states, bias included: hidden [...,D] -> [...,R]. One product per round."""
        return nn.functional.linear(hidden, self.state_hidden_mlp.weight[:, self.rank :], self.state_hidden_mlp.bias)

    def merge(self, state: Tensor, hidden_part: Tensor) -> Tensor:
        """u [...,R] from the state and ``hidden_part``."""
        return nn.functional.linear(state, self.state_hidden_mlp.weight[:, : self.rank]) + hidden_part

    def forward(self, hidden: Tensor, previous: Tensor, state: Tensor | None = None) -> Tensor:
        """Teacher-forced logits: hidden [N,K,D], previous [N,K] (the anchor first) -> [N,K,V]."""
        state = self.initial_state(hidden.shape[0]) if state is None else state
        states = []
        for i in range(hidden.shape[1]):
            state = self.step(state, previous[:, i])
            states.append(state)
        return self.output_proj(self.merge(torch.stack(states, 1), self.hidden_part(hidden)))  # type: ignore[no-any-return]


@torch.no_grad()
def svd_start(head: LowRankRNN, lm_head: Tensor, final_norm: Tensor, embedding: Tensor | None = None) -> None:
    """Start W_out and the hidden part of W_merge from the target's output matrix, so that an untrained head speaks.

    lm_head [V_out,D] rows of the draft vocabulary; final_norm [D] is folded in; ``embedding`` [V_prev,D], when given,
    starts E_R.
    """
    rank = head.rank
    left, singular, right = truncated_svd(lm_head.float() * final_norm.float(), rank)
    root = singular.sqrt()
    head.output_proj.weight.copy_(left * root)
    head.state_hidden_mlp.weight[:, rank:].copy_(root[:, None] * right)
    head.state_hidden_mlp.bias.zero_()
    if embedding is not None:
        table_start(head.prev_token_embedding, embedding)


@torch.no_grad()
def table_start(table: nn.Embedding, embedding: Tensor) -> None:
    """Start a token table [V,R] from the truncated SVD of an embedding [V,D], scaled to unit root mean square."""
    left, singular, _ = truncated_svd(embedding.float(), table.embedding_dim)
    rows = left * singular
    table.weight.copy_(rows / rows.square().mean().sqrt().clamp_min(1e-12))


def truncated_svd(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """U [V,R], S [R], Vh [R,D] through the D x D Gram matrix (V is large, D is not); zero-padded where R > D."""
    values, vectors = torch.linalg.eigh((matrix.T @ matrix).double())
    order = values.argsort(descending=True)[:rank]
    singular = values[order].clamp_min(0).sqrt().to(matrix.dtype)
    right = vectors[:, order].T.to(matrix.dtype)
    left = (matrix @ right.T) / singular.clamp_min(1e-8)
    missing = rank - len(order)
    if missing:
        left = torch.nn.functional.pad(left, (0, missing))
        singular = torch.nn.functional.pad(singular, (0, missing))
        right = torch.nn.functional.pad(right, (0, 0, 0, missing))
    return left, singular, right
