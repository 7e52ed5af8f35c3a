"""The confidence of a finished drafter held against what the target really accepts, in rounds of held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlite.checkpoint.calibration import write_calibration
from dlite.drafters.base import Chooser
from dlite.engine.calibration import calibration_error, fit, survival
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.target.base import Target
from dlite.types import Proposal, View


@dataclass(frozen=True)
class Stated:
    """M rounds: confidence logits [M,K], drafts verified [M] and accepted [M]."""

    logits: Tensor
    num_tokens: Tensor
    accepted: Tensor


def calibrate(folder: Path, target: Target, drafter: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> None:
    """Fit temperatures in greedy decoding and write them beside the drafter; every second prompt says what they bring.

    ``drafter`` is ready to decode and not calibrated. Nothing is written from fewer than two prompts.
    """
    if len(prompts) < 2:
        return
    seen, unseen = (stated(target, drafter, part, tokens) for part in (prompts[::2], prompts[1::2]))
    found = fit(seen.logits, seen.num_tokens, seen.accepted)
    errors = {
        name: [round(e, 4) for e in calibration_error(survival(unseen.logits, t), unseen.num_tokens, unseen.accepted)]
        for name, t in (("error_before", None), ("error_after", found))
    }
    write_calibration(
        folder,
        {"temperatures": [round(t, 4) for t in found], "rounds": len(seen.logits), "rounds_checked": len(unseen.logits)}
        | errors,
    )


def stated(target: Target, drafter: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> Stated:
    """Every round of decoding these prompts, one after the other, all drafts verified."""
    watched = _Watched(drafter)
    rounds = []
    for ids in prompts:
        engine = Engine(target, watched, max_batch=1)
        number = engine.submit(Request(ids, tokens))
        engine.run()
        rounds += [r for r in engine.result(number).rounds if r.proposed]
    K = drafter.max_drafts
    logits = torch.zeros(len(rounds), K)
    for row, chances in zip(logits, watched.chances, strict=True):
        row[: len(chances)] = chances.logit(1e-6)
    counts = [torch.tensor(values) for values in ([r.proposed for r in rounds], [r.accepted for r in rounds])]
    return Stated(logits, *counts)


class _Watched:
    """A drafter that notes the confidence it states, for one request at a time."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name, self.taps, self.max_drafts = inner, inner.name, inner.taps, inner.max_drafts
        self.chances: list[Tensor] = []

    def new_memory(self, rows: int) -> Any:
        """The drafter's own."""
        return self.inner.new_memory(rows)

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """The drafter's own, noted."""
        proposal: Proposal = self.inner.propose(view, counts, chooser)
        if proposal.confidence is None:
            raise RuntimeError("only a drafter with a confidence is calibrated")
        self.chances.append(proposal.confidence[0, : counts[0]].float().cpu())
        return proposal

    def state_bytes(self, context: int) -> int:
        """The drafter's own."""
        return int(self.inner.state_bytes(context))
