"""Medusa: K heads that each guess one token from the pivot's last hidden state alone (2401.10774)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser
from dlite.drafters.borrowed import Borrowed, LastTap
from dlite.drafters.network import BlockInput, DraftOutput, DraftVocab, NoOptions, drafter_backbone, options
from dlite.nn.backbone import BackboneConfig
from dlite.nn.cpu import PackedLinear, can_pack
from dlite.nn.residual import ResidualHeads
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


@dataclass(frozen=True)
class MedusaConfig:
    """Everything that fixes a Medusa. Of the ``backbone`` only the width counts: the heads are its one layer."""

    backbone: BackboneConfig
    vocab_size: int
    K: int
    taps: tuple[int, ...]
    num_target_layers: int
    last_tap: LastTap = "normed"
    draft_vocab: tuple[int, ...] | None = None


class Medusa(nn.Module):
    """Head k guesses the token k places behind the anchor from the pivot's last hidden state; nothing is remembered.

    The pivot's own next token is the anchor, so draft 1 is the first head's. The anchor itself is not looked at: no
    draft knows what was drawn before it. The target's output matrix reads every head.
    """

    name = "medusa"
    about = About(context="pivot", head="K residual heads", paper="arXiv 2401.10774")
    Config = MedusaConfig
    history = 0

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts = config, config.taps, config.K
        self.heads = ResidualHeads(config.backbone.hidden_size, config.K)
        self.vocab = DraftVocab(config.vocab_size, config.draft_vocab)
        self.borrowed = Borrowed(self.vocab)

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> MedusaConfig:
        """A Medusa for this target."""
        options(recipe, NoOptions)
        return MedusaConfig(
            backbone=replace(drafter_backbone(recipe, info), num_layers=1),
            vocab_size=info.vocab_size,
            K=recipe.K,
            taps=(info.num_layers - 1,),
            num_target_layers=info.num_layers,
            last_tap=recipe.last_tap or "normed",
            draft_vocab=vocab,
        )

    def attach(self, target: Target) -> Medusa:
        """Borrow the target's final norm and output matrix."""
        self.borrowed.attach(target)
        return self

    @torch.no_grad()
    def start(self, target: Target, generator: torch.Generator) -> None:
        """Zeros: every head begins as the target's own guess of the next token (2401.10774, section 2.1)."""
        for weight in self.parameters():
            weight.zero_()

    def forward(self, block: BlockInput) -> DraftOutput:
        """Logits [N,K,V'] of all heads at once."""
        return DraftOutput(self.logits(block.taps, block.previous.shape[1]))

    def logits(self, taps: Tensor, K: int) -> Tensor:
        """taps [N,1,D] at the pivot -> [N,K,V']."""
        hidden = self.borrowed.last_hidden(taps, self.config.last_tap).to(self.heads.bias.dtype)
        return self.borrowed.logits(self.heads(hidden)[:, :K])

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """One product for all heads; each chooses for itself."""
        logits = self.logits(view.taps, max(counts))
        tokens = [chooser.choose(slot, logits[:, slot], self.vocab.ids) for slot in range(logits.shape[1])]
        return Proposal(torch.stack(tokens, 1), torch.tensor(counts, device=view.anchor.device))

    def new_memory(self, rows: int) -> None:
        """Nothing to remember."""

    def state_bytes(self, context: int) -> int:
        """The pivot's last tap, fp32, whatever the history."""
        return 4 * self.config.backbone.hidden_size

    def freeze(self) -> Medusa:
        """Ready for decoding."""
        self.eval().requires_grad_(False)
        self.borrowed.freeze()
        if can_pack(self.heads.heads.weight):
            self.heads.heads = PackedLinear(self.heads.heads.weight)  # type: ignore[assignment]
        return self
