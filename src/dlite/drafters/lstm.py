"""The LSTM drafter of OWL (2510.07535) and the Arctic speculators: one hidden state, then token by token, then nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import About, Chooser
from dlite.drafters.borrowed import Borrowed, LastTap
from dlite.drafters.network import BlockInput, DraftOutput, DraftVocab, drafter_backbone, options, start_linear
from dlite.nn.backbone import BackboneConfig
from dlite.nn.cpu import freeze_for_cpu
from dlite.nn.heads import truncated_svd
from dlite.nn.lstm import Form, LSTMCell
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


@dataclass(frozen=True)
class LSTMConfig:
    """Everything that fixes an LSTM drafter. Of the ``backbone`` only the width counts; ``rank`` is the state's size."""

    backbone: BackboneConfig
    vocab_size: int
    K: int
    taps: tuple[int, ...]
    num_target_layers: int
    rank: int
    cell: Form
    head: Literal["target", "own"]
    last_tap: LastTap = "normed"
    draft_vocab: tuple[int, ...] | None = None


class LSTMOptions(BaseModel):
    """``cell``: the released form, or the textbook one. ``head``: the target's output matrix, or one of its own."""

    model_config = ConfigDict(extra="forbid")
    cell: Form = "gelu"
    head: Literal["target", "own"] = "target"


class LSTM(nn.Module):
    """An LSTM cell over the tokens from the anchor on, its state begun with the pivot's last hidden state.

    Each step reads the draft before it; between rounds nothing is remembered.
    """

    name = "lstm"
    about = About(context="pivot", head="an LSTM cell over the drafts", paper="arXiv 2510.07535")
    Config = LSTMConfig
    history = 0

    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts = config, config.taps, config.K
        D, R, eps = config.backbone.hidden_size, config.rank, config.backbone.rms_norm_eps
        self.vocab = DraftVocab(config.vocab_size, config.draft_vocab)
        self.state_norm, self.word_norm = nn.RMSNorm(D, eps=eps), nn.RMSNorm(D, eps=eps)
        self.state_proj = nn.Linear(D, R, bias=False)
        self.cell = LSTMCell(D, R, config.cell, eps)
        self.output_proj = nn.Linear(R, D if config.head == "target" else self.vocab.size, bias=False)
        self.borrowed = Borrowed(self.vocab)

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> LSTMConfig:
        """An LSTM drafter for this target."""
        own = options(recipe, LSTMOptions)
        return LSTMConfig(
            backbone=replace(drafter_backbone(recipe, info), num_layers=1),
            vocab_size=info.vocab_size,
            K=recipe.K,
            taps=(info.num_layers - 1,),
            num_target_layers=info.num_layers,
            rank=recipe.rank,
            cell=own.cell,
            head=own.head,
            last_tap=recipe.last_tap or "normed",
            draft_vocab=vocab,
        )

    def attach(self, target: Target) -> LSTM:
        """Borrow the target's embedding, final norm and output matrix."""
        self.borrowed.attach(target)
        return self

    @torch.no_grad()
    def start(self, target: Target, generator: torch.Generator) -> None:
        """Small normal matrices; an output matrix of its own from the SVD of the target's."""
        start_linear(self, generator)
        if self.config.head == "own":
            left, singular, _ = truncated_svd(self.vocab.select(target.output_weight()[0]), self.config.rank)
            self.output_proj.weight.copy_(left * singular.sqrt())

    def forward(self, block: BlockInput) -> DraftOutput:
        """Teacher-forced logits [N,K,V']."""
        return DraftOutput(self.logits(self.cell(self.first(block.taps), self.words(block.previous))))

    def first(self, taps: Tensor) -> Tensor:
        """What the state begins with: taps [N,1,D] at the pivot -> [N,R]."""
        hidden = self.borrowed.last_hidden(taps, self.config.last_tap).to(self.cell.bias.dtype)
        return self.state_proj(self.state_norm(hidden))  # type: ignore[no-any-return]

    def words(self, tokens: Tensor) -> Tensor:
        """The cell's inputs: tokens [...] -> [...,D]."""
        return self.word_norm(self.borrowed.target.embed(tokens).to(self.cell.bias.dtype))  # type: ignore[no-any-return]

    def logits(self, states: Tensor) -> Tensor:
        """[...,R] -> [...,V']."""
        out: Tensor = self.output_proj(states)
        return self.borrowed.logits(out) if self.config.head == "target" else out

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """``max(counts)`` steps of the cell, each over the draft before it."""
        state, previous, drafts = self.cell.begin(self.first(view.taps)), view.anchor, []
        for slot in range(max(counts)):
            state = self.cell.step(state, self.cell.from_input(self.words(previous)))
            previous = chooser.choose(slot, self.logits(state.hidden), self.vocab.ids)
            drafts.append(previous)
        return Proposal(torch.stack(drafts, 1), torch.tensor(counts, device=view.anchor.device))

    def new_memory(self, rows: int) -> None:
        """Nothing to remember."""

    def state_bytes(self, context: int) -> int:
        """The pivot's last tap, fp32, whatever the history."""
        return 4 * self.config.backbone.hidden_size

    def freeze(self) -> LSTM:
        """Ready for decoding."""
        self.eval().requires_grad_(False)
        self.borrowed.freeze()
        freeze_for_cpu(self, ())
        return self
