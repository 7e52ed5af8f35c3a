"""DFlash2's head: the best few tokens of every slot, scored as successors of the token before (blog, August 2026)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Pairwise(nn.Module):
    """Score of candidate b behind token p: U(b) + <A[p] * (W_h h), B[b]>, with U the slot's own logits.

    ``vocab_out`` may be a reduced draft vocabulary and ``vocab_prev`` the rows of the previous-token table.
    """

    def __init__(self, hidden_size: int, rank: int, vocab_out: int, vocab_prev: int, candidates: int) -> None:
        super().__init__()
        self.candidates = candidates
        self.prev_token_embedding = nn.Embedding(vocab_prev, rank)
        self.next_token_embedding = nn.Embedding(vocab_out, rank)
        self.hidden_proj = nn.Linear(hidden_size, rank, bias=False)

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The candidates of every slot: rows and their logits [...,C] of logits [...,V]."""
        own, rows = logits.topk(self.candidates, -1)
        return rows, own

    def score(self, rows: Tensor, own: Tensor, hidden_part: Tensor, previous: Tensor) -> Tensor:
        """rows, own [...,C], hidden_part [...,R] = W_h h, previous [...] -> [...,C]."""
        pair = self.prev_token_embedding(previous) * hidden_part
        return own + (self.next_token_embedding(rows) @ pair.unsqueeze(-1)).squeeze(-1)  # type: ignore[no-any-return]

    def forward(self, logits: Tensor, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
        """Teacher-forced: logits [N,K,V], hidden [N,K,D], previous [N,K] (the anchor first) -> rows, scores [N,K,C]."""
        rows, own = self.best(logits)
        return rows, self.score(rows, own, self.hidden_proj(hidden), previous)


def spread(rows: Tensor, scores: Tensor, size: int) -> Tensor:
    """Scores [...,C] as logits over ``size`` tokens, -inf for all but the candidates: [...,size]."""
    return scores.new_full((*scores.shape[:-1], size), -torch.inf).scatter(-1, rows, scores)
