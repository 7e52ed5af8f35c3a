"""DFlow's relay as plain loops: one row, what one round leaves, and the rounds that training makes up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dlite.nn.relay import Relay

# Block -> rows for placeholders 1, 2, ... and the first rejected token.
Rounds = Mapping[int, tuple[list[Tensor], int]]


def relay(model: Relay, correction: Tensor, rejected: Tensor, row: Tensor) -> Tensor:
    """What is added to one placeholder, [D]."""
    D = len(row)
    mixed = model.inner.weight @ torch.cat([correction, rejected, row]) + model.inner.bias
    both = model.outer.weight @ (mixed / (1 + torch.exp(-mixed))) + model.outer.bias
    mean = torch.stack([row[j] for j in range(D)]).sum() / D
    spread = torch.stack([(row[j] - mean) ** 2 for j in range(D)]).sum() / D
    return torch.stack(
        [both[j] * (row[j] - mean) / torch.sqrt(spread + model.norm.eps) + both[D + j] for j in range(D)]
    )


def left(drafts: Sequence[int], verified: Sequence[int], kept: int) -> list[tuple[int, int]]:
    """Rows of a pass over ``verified``, the anchor first, that a round leaves, each with its placeholder.

    Row r stands r positions behind the anchor and knows most of the position after it; the next round's anchor stands
    ``kept`` positions behind. Rows count while they are the round's own drafts.
    """
    pairs = []
    for r in range(1, len(verified)):
        if r > len(drafts) or verified[r] != drafts[r - 1]:
            break
        if r >= kept:
            pairs.append((r, r + 1 - kept))
    return pairs


def rounds_before(
    anchors: Sequence[int],
    depth: int,
    tokens: Sequence[int],
    K: int,
    draft: Callable[[Mapping[int, int], Rounds], dict[int, list[int]]],
    states: Callable[[int, Sequence[int]], list[Tensor]],
    earliest: int,
) -> Rounds:
    """What ``depth`` rounds leave to blocks at these places of ``tokens``.

    ``draft`` drafts from the places given for some blocks, ``states`` are the context rows of drafts from a place on;
    positions before ``earliest`` are not known.
    """
    begins: dict[int, int] = {}
    for n, anchor in enumerate(anchors):
        lag = 1
        while lag < K and (n + 1) % 2**lag == 0:
            lag += 1
        if anchor - lag - 1 >= earliest:
            begins[n] = anchor - lag
    order = list(begins)
    earlier: Rounds = {}
    if depth > 1:
        found = rounds_before([begins[n] for n in order], depth - 1, tokens, K, draft, states, earliest)
        earlier = {order[i]: rows for i, rows in found.items()}
    rounds: dict[int, tuple[list[Tensor], int]] = {}
    for n, drafts in draft(begins, earlier).items():
        lag, accepted = anchors[n] - begins[n], 0
        while accepted < lag and drafts[accepted] == tokens[begins[n] + 1 + accepted]:
            accepted += 1
        if accepted == lag - 1:
            rounds[n] = (states(anchors[n], drafts[accepted:]), drafts[accepted])
    return rounds
