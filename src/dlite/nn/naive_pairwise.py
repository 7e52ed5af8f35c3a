"""DFlash2's head as loops over one block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlite.nn.pairwise import Pairwise


def pairwise(
    model: Pairwise, logits: Sequence[Tensor], hidden: Sequence[Tensor], previous: Sequence[int]
) -> list[dict[int, Tensor]]:
    """Of each draft the score of its candidates, the tokens with the largest logits."""
    blocks = []
    for own, h, token in zip(logits, hidden, previous, strict=True):
        values = own.tolist()
        best = sorted(range(len(values)), key=values.__getitem__, reverse=True)[: model.candidates]
        mixed = model.hidden_proj.weight @ h
        scores = {}
        for b in best:
            pair = [
                model.prev_token_embedding.weight[token, j] * mixed[j] * model.next_token_embedding.weight[b, j]
                for j in range(len(mixed))
            ]
            scores[b] = own[b] + torch.stack(pair).sum()
        blocks.append(scores)
    return blocks
