"""One optimizer step of one stage: sums over all its batches and processes, one division, one update."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from dlite.config import Recipe, StageRecipe
from dlite.features.blocks import Blocks
from dlite.nn.losses import LossSum
from dlite.target.base import Target
from dlite.train.muon import Muon
from dlite.train.schedule import block_length
from dlite.train.source import Source
from dlite.train.stages import block_input, stage_loss


@dataclass(frozen=True)
class Gradient:
    """What the gradient of a step came from."""

    loss: float
    norm: float  # before clipping
    parts: dict[str, float]  # each loss by name, without its weight in the stage
    blocks: int


class Learner:
    """The network of a stage, its frozen teacher if it has one, and its optimizers."""

    def __init__(
        self,
        accelerator: Accelerator,
        recipe: Recipe,
        stage: StageRecipe,
        target: Target,
        network: Any,
        teacher: Any,
        optimizers: Sequence[dict[str, Any]] | None,
    ) -> None:
        """``optimizers`` are states to go on from."""
        self.accelerator, self.settings, self.recipe = accelerator, recipe.train, recipe
        self.stage, self.target, self.network = stage, target, network
        self.teacher = teacher if stage.losses.kl_teacher else None
        self.trained = [p for p in network.parameters() if p.requires_grad]
        fresh = _optimizers(network, recipe, stage)
        if optimizers is not None:
            for optimizer, saved in zip(fresh, optimizers, strict=True):
                optimizer.load_state_dict(saved)
        self.base_lrs = [stage.lr if isinstance(o, torch.optim.AdamW) else stage.muon_lr for o in fresh]
        self.model, *self.optimizers = accelerator.prepare(network, *fresh)

    @property
    def history(self) -> int:
        """Positions before the pivot that the network or its teacher needs."""
        return max(int(self.network.history), self.teacher.history if self.teacher else 0)

    def gradient(self, step: int, source: Source) -> Gradient:
        """Accumulate sums, divide by the global weight, clip."""
        total, parts, blocks = self._accumulate(step, source)
        weight = self.accelerator.reduce(total.weight, "sum")
        for parameter in self.trained:
            if parameter.grad is not None:  # DDP has averaged over ranks, so times their number
                parameter.grad.mul_(self.accelerator.num_processes / weight)
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.settings.clip)
        loss = float(self.accelerator.reduce(total.sum, "sum") / weight)
        return Gradient(loss, float(norm), {k: v / float(total.weight) for k, v in parts.items()}, blocks)

    def update(self, factor: float) -> None:
        """Move the weights at ``factor`` of the stage's learning rates."""
        for optimizer, base in zip(self.optimizers, self.base_lrs, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _accumulate(self, step: int, source: Source) -> tuple[LossSum, dict[str, float], int]:
        seen, device = 0, self.accelerator.device
        total = LossSum(torch.zeros((), device=device), torch.zeros((), device=device))
        parts: dict[str, float] = {}
        for micro in range(self.settings.accumulate):
            number = step * self.settings.accumulate + micro
            blocks = source.batch(
                number, self.accelerator.process_index, self.accelerator.num_processes, self.history
            ).to(device)
            last = micro == self.settings.accumulate - 1
            with self.accelerator.no_sync(self.model) if not last else nullcontext():
                found, some = self._loss(blocks, block_length(self.recipe, number))
                self.accelerator.backward(found.sum)
            total = LossSum(total.sum + found.sum.detach(), total.weight + found.weight.detach())
            parts = {k: parts.get(k, 0.0) + v for k, v in some.items()}
            seen += len(blocks)
        return total, parts, seen * self.accelerator.num_processes

    def _loss(self, blocks: Blocks, K: int) -> tuple[LossSum, dict[str, float]]:
        output = self.model(block_input(blocks, K, self.network.history))
        teacher_logits = None
        if self.teacher is not None:
            with torch.no_grad():
                teacher_logits = self.teacher(block_input(blocks, K, self.teacher.history)).logits
        vocab = self.network.vocab
        return stage_loss(output, blocks, self.stage.losses, self.settings, self.target, vocab, teacher_logits)


def _optimizers(network: Any, recipe: Recipe, stage: StageRecipe) -> list[torch.optim.Optimizer]:
    settings, named = recipe.train, [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    matrices: list[Tensor] = []
    if settings.optimizer == "muon":  # tables and vocabulary matrices stay with AdamW
        tables = {id(p) for m in network.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
        matrices = [p for _, p in named if p.ndim == 2 and min(p.shape) > 1 and id(p) not in tables]
        matrices = [p for p in matrices if p.shape[0] != network.vocab.size]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    found: list[torch.optim.Optimizer] = []
    if rest:
        found.append(torch.optim.AdamW(rest, lr=stage.lr, betas=(0.9, settings.beta2), weight_decay=0.0, fused=True))
    if matrices:  # Medusa's heads are nothing else
        found.append(Muon(matrices, stage.muon_lr))
    return found
