"""Every trained arm at the same held-out anchors: thousands of blocks in seconds, where decoding gives dozens of rounds.

At each anchor the drafter drafts once, after the target's own text, and its drafts count up to the first that differs
from what the target wrote. Teacher forcing changes nothing before that draft, so one batched pass is enough. It is not
the tau of decoding: anchors lie anywhere in an answer, rounds begin where the last one ended.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dlite.bench.figures import bootstrap
from dlite.checkpoint import load_drafter as load_folder
from dlite.engine.stats import acceptance_by_position, tau
from dlite.features.store import Store
from dlite.target.base import Target
from dlite.train.stages import block_input
from dlite.types import Round

Matches = list[tuple[int, ...]]  # accepted drafts at each anchor, by conversation


@torch.no_grad()
def matches(folder: Path, target: Target, store: Path, batch: int) -> Matches:
    """How many drafts of the drafter in ``folder`` hold at each anchor of ``store``."""
    network = load_folder(folder, target.info)[0].attach(target).eval()
    blocks = Store(store, taps=network.taps)
    found: Matches = []
    before = 0
    for start in range(0, len(blocks), batch):
        some = blocks.take(torch.arange(start, min(start + batch, len(blocks))), network.history)
        output = network(block_input(some, network.max_drafts, network.history))
        rows = output.logits.argmax(-1)
        if output.candidates is not None:
            choices, scores = output.candidates
            rows = choices.gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
        held = held_drafts(rows if network.vocab.ids is None else network.vocab.ids[rows], some.labels, some.counted)
        for place, number in zip(some.place[some.pivot].tolist(), held.tolist(), strict=True):
            if not found or place <= before:  # places grow within a conversation
                found.append(())
            found[-1] += (number,)
            before = place
    return found


def held_drafts(drafts: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """Drafts before the first that is not its label: drafts, labels [N,K] and counted [N] -> [N]."""
    K = drafts.shape[1]
    good = (drafts == labels[:, :K]) & (torch.arange(K) < counted[:, None])
    return good.long().cumprod(1).sum(1)


def figures(found: Matches, first: Matches, K: int, seed: int) -> dict[str, Any]:
    """Figures of one arm, and how much longer its runs are than the ``first``'s at the same anchors.

    Intervals are over conversations.
    """
    rounds = [Round(K, number, number + 1, 0) for one in found for number in one]
    columns = np.array([[sum(one), sum(other), len(one)] for one, other in zip(found, first, strict=True)], dtype=float)
    length = bootstrap(columns, lambda sums: 1 + sums[..., 0] / sums[..., 2], seed=seed)
    more = bootstrap(columns, lambda sums: (sums[..., 0] - sums[..., 1]) / sums[..., 2], seed=seed)
    return {
        "anchors": len(rounds),
        "conversations": len(found),
        "tau": asdict(replace(length, value=tau(rounds))) if length else None,
        "longer": asdict(more) if more else None,
        "acceptance_by_position": [round(x, 4) for x in acceptance_by_position(rounds)],
    }
