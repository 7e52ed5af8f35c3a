"""What EAGLE-3 and the multi-token predictor share: one layer that drafts token by token over its own entries.

Entry t pairs the features of position t with the token behind it. A round begins with the pivot's entry, completed by
the anchor; from then on the layer's output stands for the features that the target has not computed yet. Training takes
the same K steps (EAGLE-3's training-time test, 2503.01840): step k reads the output of step k-1 and the true token, and
sees the entries before the pivot and its own block's earlier steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.base import Chooser
from dlite.drafters.borrowed import Borrowed
from dlite.drafters.network import BlockInput, DraftOutput, DraftVocab, History, drafter_backbone, start_linear
from dlite.nn.backbone import BackboneConfig
from dlite.nn.cpu import freeze_for_cpu
from dlite.nn.past import PairMemory, SharedPast, past_bytes
from dlite.nn.recursive import MergedEntry, Recursive, Steps, WideEntry
from dlite.target.base import Target, TargetInfo
from dlite.types import Proposal, View


@dataclass(frozen=True)
class RecursiveConfig:
    """What fixes a recursive drafter; its ``backbone`` is one layer.

    ``window`` bounds the positions it sees, the pivot among them (None: all; 1: no history, and nothing is kept);
    ``history`` is how many before the pivot training shows.
    """

    backbone: BackboneConfig
    vocab_size: int
    K: int
    taps: tuple[int, ...]
    num_target_layers: int
    window: int | None
    history: int
    draft_vocab: tuple[int, ...] | None = None


def recursive_values(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> dict[str, object]:
    """The fields of ``RecursiveConfig`` that a recipe gives, all but ``taps``."""
    return {
        "backbone": replace(drafter_backbone(recipe, info), num_layers=1),
        "vocab_size": info.vocab_size,
        "K": recipe.K,
        "num_target_layers": info.num_layers,
        "window": recipe.window,
        "history": min(recipe.history, recipe.window or recipe.history) - 1,
        "draft_vocab": vocab,
    }


class RecursiveDrafter(nn.Module, ABC):
    """A drafter around a ``Recursive`` layer; a kind says what its features are and what a step hands on."""

    def __init__(self, config: RecursiveConfig, entry: WideEntry | MergedEntry) -> None:
        super().__init__()
        self.config, self.taps, self.max_drafts, self.history = config, config.taps, config.K, config.history
        self.vocab = DraftVocab(config.vocab_size, config.draft_vocab)
        self.body = Recursive(config.backbone, entry)
        self.borrowed = Borrowed(self.vocab)

    @abstractmethod
    def features(self, taps: Tensor) -> Tensor:
        """Features of positions from their taps: [...,n,D] -> [...,D]."""

    def handed_on(self, state: Tensor, hidden: Tensor) -> Tensor:
        """The features of the next step: the layer's output, before (``state``) or after the norm (``hidden``), [N,D]."""
        return state

    def attach(self, target: Target) -> Self:
        """Borrow the target's embedding, final norm and output matrix."""
        self.borrowed.attach(target)
        return self

    @torch.no_grad()
    def start(self, target: Target, generator: torch.Generator) -> None:
        """Small normal matrices; the norm before the output matrix from the target's."""
        start_linear(self, generator)
        self.body.norm.weight.copy_(target.output_weight()[1])

    def forward(self, block: BlockInput) -> DraftOutput:
        """Logits [N,K,V'] of K steps, each over the true token and the output of the step before."""
        past = None if block.history is None else self.shared_past(block.history)
        steps = Steps(self.body, past, block.anchor.new_tensor([-1]))  # counted from the anchor, as in the past
        features, rows = self.features(block.taps), []
        for previous in block.previous.unbind(1):
            hidden, features = self.step(steps, previous, features)
            rows.append(hidden)
        return DraftOutput(self.borrowed.logits(torch.stack(rows, 1)))

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """``max(counts)`` steps, each over the draft before it."""
        memory: PairMemory | None = view.memory
        past, positions = None, view.anchor.new_zeros(1)
        if memory is not None:
            past, positions = memory.read(view.rows), memory.anchors(view.rows)
        steps = Steps(self.body, past, positions)
        previous, features, drafts = view.anchor, self.features(view.taps), []
        for slot in range(max(counts)):
            hidden, features = self.step(steps, previous, features)
            previous = chooser.choose(slot, self.borrowed.logits(hidden), self.vocab.ids)
            drafts.append(previous)
        return Proposal(torch.stack(drafts, 1), torch.tensor(counts, device=view.anchor.device))

    def step(self, steps: Steps, previous: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """What the output matrix reads and the features handed on: previous [N], features [N,D] -> [N,D] each."""
        state = steps.take(self.words(previous), features)
        hidden = self.body.norm(state)
        return hidden, self.handed_on(state, hidden)

    def words(self, tokens: Tensor) -> Tensor:
        """The target's embeddings: [...] -> [...,D]."""
        return self.borrowed.target.embed(tokens).to(self.body.norm.weight.dtype)

    def entries(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What the attention reads of entries: tokens [...], the features before them [...,D] -> [...,width]."""
        return self.body.layer.entry(self.words(tokens), features)[1]  # type: ignore[no-any-return]

    def shared_past(self, history: History) -> SharedPast:
        """The entries before the pivots of training blocks."""
        rows = self.entries(history.following, self.features(history.taps))
        return SharedPast(rows, history.rows, history.distance, history.real, self.config.backbone)

    def new_memory(self, rows: int) -> PairMemory | None:
        """Keys and values of the entries before the pivot; None where it sees the pivot alone."""
        window = self.config.window
        if window == 1:
            return None
        return PairMemory(self.body, self.features, self.entries, rows, None if window is None else window - 1)

    def state_bytes(self, context: int) -> int:
        """Keys and values of the entries before the pivot, and the pivot's features, fp32."""
        window, newest = self.config.window, 4 * self.config.backbone.hidden_size
        if window == 1:
            return newest
        return newest + past_bytes(self.config.backbone, context - 1, None if window is None else window - 1)

    def freeze(self) -> Self:
        """Ready for decoding."""
        self.eval().requires_grad_(False)
        freeze_for_cpu(self.body.layer, (("k_proj", "v_proj"), ("gate_proj", "up_proj")))
        self.borrowed.freeze()
        return self
