"""DFlash: block drafting over fused features of the whole history, with the target's own output matrix (2602.06036)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict
from torch import nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser
from dlite.drafters.fused import FusedBody, FusedConfig, Slots, fused_values
from dlite.drafters.network import BlockInput, DraftOutput, drafter_backbone, options
from dlite.nn.past import PastMemory
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


class DFlashOptions(BaseModel):
    """``slots``: K placeholders predict themselves, or the anchor and K-1 placeholders predict the next."""

    model_config = ConfigDict(extra="forbid")
    slots: Slots = "placeholders"


class DFlash(nn.Module):
    """Every slot of the block is predicted on its own, in one parallel pass over the features of all verified positions."""

    name = "dflash"
    about = About(context="all", head="the target's", paper="arXiv 2602.06036")
    Config = FusedConfig

    def __init__(self, config: FusedConfig) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts, self.history = config, config.taps, config.K, config.history
        self.body = FusedBody(config)
        self.vocab = self.body.vocab

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> FusedConfig:
        """A DFlash for this target."""
        own = options(recipe, DFlashOptions)
        values = fused_values(recipe, drafter_backbone(recipe, info), info, vocab)
        return FusedConfig(**values, slots=own.slots)  # type: ignore[arg-type]

    def attach(self, target: Target) -> DFlash:
        """Borrow the target's matrices."""
        self.body.attach(target)
        return self

    def start(self, target: Target, generator: torch.Generator) -> None:
        """Initial weights."""
        self.body.start(target, generator)

    def forward(self, block: BlockInput) -> DraftOutput:
        """Logits [N,K,V'] of every slot at once."""
        return DraftOutput(self.body.logits(self.body.train_hidden(block)))

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One pass of the block; each slot chooses for itself."""
        logits = self.body.logits(self.body.draft_hidden(view)[:, : max(counts)])
        tokens = [chooser.choose(slot, logits[:, slot], self.vocab.ids) for slot in range(logits.shape[1])]
        return Proposal(torch.stack(tokens, 1), torch.tensor(counts, device=view.anchor.device))

    def new_memory(self, rows: int) -> PastMemory:
        """Keys and values of the verified positions."""
        return self.body.new_memory(rows)

    def state_bytes(self, context: int) -> int:
        """Keys and values of the history, fp32."""
        return self.body.state_bytes(context)

    def freeze(self) -> DFlash:
        """Ready for decoding."""
        self.eval()
        self.body.freeze()
        return self
