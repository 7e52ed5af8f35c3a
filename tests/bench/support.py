"""Drafters, a lying target and calls for the benchmark's tests."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from dlite.bench.suites import Call
from dlite.drafters.base import Chooser
from dlite.drafters.dlite import DLite, DLiteConfig
from dlite.nn.backbone import BackboneConfig
from dlite.target.base import Rows, TargetOutput
from dlite.target.toy import ToyCache, ToyTarget
from dlite.types import Proposal, View


class Guesser:
    """Proposes what the toy target would say, wrong now and then: a drafter that gets somewhere."""

    name = "guesser"
    taps: tuple[int, ...] = ()
    max_drafts = 4

    def __init__(self, target: ToyTarget, right: float = 0.7) -> None:
        self.target, self.right, self.random = target, right, random.Random(0)

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        rows = []
        for tokens in view.tokens:
            text = list(tokens)
            for _ in range(max(counts)):
                states = self.target._states(torch.tensor([text[-2]]), torch.tensor([text[-1]]))
                best = int(self.target.last_tap_logits(states[0, -1]).argmax())
                text.append(best if self.random.random() < self.right else (best + 1) % 12)
            rows.append(text[len(tokens) :])
        return Proposal(torch.tensor(rows), torch.tensor(counts))

    def new_memory(self, rows: int) -> None:
        return None

    def state_bytes(self, context: int) -> int:
        return 0


class LyingTarget(ToyTarget):
    """Passes over several rows come out ``off`` by a little or a lot: what a faulty kernel does to verification."""

    off = 0.0
    lie = 5

    def forward(self, tokens: Tensor, cache: ToyCache, first: int, taps: tuple[int, ...], rows: Rows) -> TargetOutput:
        output = super().forward(tokens, cache, first, taps, rows)
        if rows == "all" and tokens.shape[1] > 1:
            output.logits[..., self.lie] += self.off
        return output


def make_dlite(target: ToyTarget, K: int = 4) -> DLite:
    config = DLiteConfig(BackboneConfig(16, 1, 2, 1, 8, 32), 12, K, (0, 2, 5), 6, 8, 11)
    drafter = DLite(config).attach(target)
    drafter.start(target, torch.Generator().manual_seed(1))
    return drafter.eval()


def make_calls(workload: str, n: int, *, length: int = 9, max_new_tokens: int = 24) -> list[Call]:
    dice = random.Random(workload)
    return [
        Call(
            f"{workload}:{i}", workload, f"{workload}:{i}", max_new_tokens=max_new_tokens,
            ids=tuple(dice.randrange(1, 12) for _ in range(length + i)),
        )
        for i in range(n)
    ]  # fmt: skip
