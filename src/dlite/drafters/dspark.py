"""DSpark: DFlash whose anchor predicts too, with a sequential bias from the token before and a confidence (2607.05147).

The block's logits come from one pass and the target's own output matrix; from draft to draft only a low-rank bias is
added, so that a draft knows the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser
from dlite.drafters.fused import FusedBody, FusedConfig, Slots, fused_values
from dlite.drafters.network import BlockInput, DraftOutput, drafter_backbone, options, start_linear
from dlite.nn.cpu import freeze_for_cpu
from dlite.nn.heads import table_start
from dlite.nn.markov import Cell, Confidence, Markov
from dlite.nn.past import PastMemory
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


class DSparkOptions(BaseModel):
    """``head`` is the form of the bias; ``slots`` as in DFlash, with the paper's own choice."""

    model_config = ConfigDict(extra="forbid")
    head: Cell = "vanilla"
    slots: Slots = "anchor_predicts"


@dataclass(frozen=True, kw_only=True)
class DSparkConfig(FusedConfig):
    """A fused body, the form of the bias and its rank."""

    head: Cell
    rank: int


class DSpark(nn.Module):
    """A parallel block whose logits get a low-rank bias from the token before, and a confidence for every draft.

    The confidence is trained to the chance of acceptance at temperature 1: 1 - ||p - q||_1 / 2. With a draft vocabulary
    p is the target's distribution over it, so it is the chance while the target stays inside.
    """

    name = "dspark"
    about = About(
        context="all", head="the target's own and a low-rank bias from the token before", paper="arXiv 2607.05147"
    )
    Config = DSparkConfig

    def __init__(self, config: DSparkConfig) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts, self.history = config, config.taps, config.K, config.history
        self.body = FusedBody(config)
        self.vocab = self.body.vocab
        D, rank = config.backbone.hidden_size, config.rank
        self.markov = Markov(config.head, D, rank, self.vocab.size, self.vocab.previous_size)
        self.confidence = Confidence(D, rank)

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> DSparkConfig:
        """A DSpark for this target."""
        own = options(recipe, DSparkOptions)
        values = fused_values(recipe, drafter_backbone(recipe, info), info, vocab)
        return DSparkConfig(**values, slots=own.slots, head=own.head, rank=recipe.rank)  # type: ignore[arg-type]

    def attach(self, target: Target) -> DSpark:
        """Borrow the target's matrices."""
        self.body.attach(target)
        return self

    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights: no bias yet, so that an untrained DSpark drafts as DFlash does."""
        self.body.start(target, generator)
        start_linear(self.markov, generator)
        start_linear(self.confidence, generator)
        table_start(self.markov.prev_token_embedding, self.vocab.previous_words(target))
        nn.init.zeros_(self.markov.output_proj.weight)

    def forward(self, block: BlockInput) -> DraftOutput:
        """Logits [N,K,V'] and confidence [N,K]."""
        hidden = self.body.train_hidden(block)
        words = self.markov.words(self.vocab.to_rows(block.previous))
        return DraftOutput(self.body.logits(hidden) + self.markov(words, hidden), self.confidence(words, hidden))

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One pass of the block, then ``max(counts)`` steps of the head."""
        hidden = self.body.draft_hidden(view)[:, : max(counts)]
        logits, state = self.body.logits(hidden), self.markov.initial_state(len(hidden))
        previous, drafts, read = view.anchor, [], []
        for slot in range(max(counts)):
            words = self.markov.words(self.vocab.to_rows(previous))
            state, bias = self.markov.step(state, words, hidden[:, slot])
            previous = chooser.choose(slot, logits[:, slot] + bias, self.vocab.ids)
            drafts.append(previous)
            read.append(words)
        confidence = self.confidence(torch.stack(read, 1), hidden).float().sigmoid()
        num_tokens = torch.tensor(counts, device=view.anchor.device)
        return Proposal(torch.stack(drafts, 1), num_tokens, confidence=confidence)

    def new_memory(self, rows: int) -> PastMemory:
        """Keys and values of the verified positions."""
        return self.body.new_memory(rows)

    def state_bytes(self, context: int) -> int:
        """Keys and values of the history, fp32."""
        return self.body.state_bytes(context)

    def freeze(self) -> DSpark:
        """Ready for decoding."""
        self.eval().requires_grad_(False)
        self.body.freeze()
        freeze_for_cpu(self.markov, ())
        freeze_for_cpu(self.confidence, ())
        return self
