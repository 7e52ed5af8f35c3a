"""DFlash2: DFlash with convolutions along the block and a head that orders a few candidates (blog, August 2026).

Every slot names its best tokens in the parallel pass; going through the block, each chooses among its own given the
token chosen before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser
from dlite.drafters.fused import FusedBody, FusedConfig, Slots, fused_values
from dlite.drafters.network import BlockInput, DraftOutput, drafter_backbone, options, start_linear
from dlite.errors import ConfigError
from dlite.nn.convolution import ConvLayer, DynamicConv
from dlite.nn.cpu import freeze_for_cpu
from dlite.nn.heads import table_start
from dlite.nn.pairwise import Pairwise, spread
from dlite.nn.past import PastMemory
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


class DFlash2Options(BaseModel):
    """``candidates`` a slot, channels a ``conv_group``; ``slots`` as in DFlash."""

    model_config = ConfigDict(extra="forbid")
    candidates: int = Field(default=16, ge=1)
    conv_group: int = Field(default=16, ge=1)
    slots: Slots = "placeholders"


@dataclass(frozen=True, kw_only=True)
class DFlash2Config(FusedConfig):
    """A fused body, the channels that share a tap of its convolutions, the candidates of a slot and their rank."""

    conv_group: int
    candidates: int
    rank: int


class DFlash2(nn.Module):
    """A parallel block mixed by convolutions; each slot chooses among its best few tokens given the one before."""

    name = "dflash2"
    about = About(
        context="all", head="the target's own, its best few ordered by the token before", paper="DFlash2 (blog, 2026)"
    )
    Config = DFlash2Config

    def __init__(self, config: DFlash2Config) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts, self.history = config, config.taps, config.K, config.history
        self.body = FusedBody(config, partial(ConvLayer, group=config.conv_group))
        self.vocab = self.body.vocab
        sizes = config.backbone.hidden_size, config.rank, self.vocab.size, self.vocab.previous_size
        self.pairwise = Pairwise(*sizes, config.candidates)

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> DFlash2Config:
        """A DFlash2 for this target. Errors: ``ConfigError``."""
        own = options(recipe, DFlash2Options)
        backbone = drafter_backbone(recipe, info)
        if backbone.hidden_size % own.conv_group:
            raise ConfigError(
                f"drafter.options.conv_group is {own.conv_group}, which does not divide the hidden size "
                f"{backbone.hidden_size}. Expected a divisor of it."
            )
        words = info.vocab_size if vocab is None else len(vocab)
        return DFlash2Config(
            **fused_values(recipe, backbone, info, vocab),  # type: ignore[arg-type]
            slots=own.slots,
            conv_group=own.conv_group,
            candidates=min(own.candidates, words),
            rank=recipe.rank,
        )

    def attach(self, target: Target) -> DFlash2:
        """Borrow the target's matrices."""
        self.body.attach(target)
        return self

    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights: no convolution and no pairs yet, so that an untrained DFlash2 drafts as DFlash does."""
        self.body.start(target, generator)
        for module in self.body.modules():
            if isinstance(module, DynamicConv):
                module.identity()
        start_linear(self.pairwise, generator)
        table_start(self.pairwise.prev_token_embedding, self.vocab.previous_words(target))
        nn.init.zeros_(self.pairwise.next_token_embedding.weight)

    def forward(self, block: BlockInput) -> DraftOutput:
        """Logits [N,K,V'] of every slot, and its candidates with their scores [N,K,C]."""
        hidden = self.body.train_hidden(block)
        logits = self.body.logits(hidden)
        return DraftOutput(logits, candidates=self.pairwise(logits, hidden, self.vocab.to_rows(block.previous)))

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One pass of the block and its candidates, then ``max(counts)`` choices among them.

        The chooser sees logits of -inf outside the candidates: the q that it keeps is the one it draws from.
        """
        hidden = self.body.draft_hidden(view)[:, : max(counts)]
        rows, own = self.pairwise.best(self.body.logits(hidden))
        mixed = self.pairwise.hidden_proj(hidden)
        previous, drafts = view.anchor, []
        for slot in range(max(counts)):
            before = self.vocab.to_rows(previous)
            scores = self.pairwise.score(rows[:, slot], own[:, slot], mixed[:, slot], before)
            previous = chooser.choose(slot, spread(rows[:, slot], scores, self.vocab.size), self.vocab.ids)
            drafts.append(previous)
        return Proposal(torch.stack(drafts, 1), torch.tensor(counts, device=view.anchor.device))

    def new_memory(self, rows: int) -> PastMemory:
        """Keys and values of the verified positions."""
        return self.body.new_memory(rows)

    def state_bytes(self, context: int) -> int:
        """Keys and values of the history, fp32."""
        return self.body.state_bytes(context)

    def freeze(self) -> DFlash2:
        """Ready for decoding."""
        self.eval().requires_grad_(False)
        self.body.freeze()
        freeze_for_cpu(self.pairwise, ())
        return self
