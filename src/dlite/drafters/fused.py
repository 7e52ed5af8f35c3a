"""The body that DFlash and its descendants share: fused features of every verified position, one parallel pass.

The taps of a position are joined along the feature axis, projected to one row and normalised (2602.06036). The block
reads the rows of all positions before the anchor, or of the last ``window``; they are kept as keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.borrowed import Borrowed
from dlite.drafters.network import BlockInput, DraftVocab, History, start_linear
from dlite.nn.backbone import Backbone, BackboneConfig, Layer, Past
from dlite.nn.cpu import freeze_for_cpu
from dlite.nn.layout import BlockLayout, shallow_taps
from dlite.nn.past import PastMemory, SharedPast, past_bytes
from dlite.target.base import Target, TargetInfo
from dlite.types import View

Slots = Literal["placeholders", "anchor_predicts"]


@dataclass(frozen=True)
class FusedConfig:
    """What fixes a body.

    ``slots`` says which rows predict: K placeholders, or the anchor and K-1 placeholders. ``window`` bounds the history
    kept (None: all); ``history`` is how many positions before the pivot training shows.
    """

    backbone: BackboneConfig
    vocab_size: int
    K: int
    taps: tuple[int, ...]
    num_target_layers: int
    mask_token_id: int
    slots: Slots
    window: int | None
    history: int
    placeholder: Literal["learned", "token"] = "learned"
    draft_vocab: tuple[int, ...] | None = None


def fused_values(
    recipe: DrafterRecipe, backbone: BackboneConfig, info: TargetInfo, vocab: tuple[int, ...] | None
) -> dict[str, object]:
    """The fields of ``FusedConfig`` that a recipe gives, all but ``slots``. The pivot is one of the window's positions."""
    window = recipe.window
    return {
        "backbone": backbone,
        "vocab_size": info.vocab_size,
        "K": recipe.K,
        "taps": recipe.taps or shallow_taps(info.num_layers, recipe.num_taps),
        "num_target_layers": info.num_layers,
        "mask_token_id": recipe.mask_token_id,
        "window": window,
        "history": min(recipe.history, window or recipe.history) - 1,
        "placeholder": recipe.placeholder,
        "draft_vocab": vocab,
    }


class FusedBody(nn.Module):
    """Blocks to hidden states of the predicting rows. The target's embedding and output matrix are borrowed.

    ``layer`` makes the backbone's layers, plain ones where it is left out.
    """

    def __init__(self, config: FusedConfig, layer: Callable[[BackboneConfig], Layer] | None = None) -> None:
        super().__init__()
        self.config = config
        D, eps = config.backbone.hidden_size, config.backbone.rms_norm_eps
        self.layout = BlockLayout(config.K, anchor_predicts=config.slots == "anchor_predicts")
        self.vocab = DraftVocab(config.vocab_size, config.draft_vocab)
        self.fuse_taps = nn.Linear(len(config.taps) * D, D, bias=False)
        self.fuse_norm = nn.RMSNorm(D, eps=eps)
        backbone = Backbone(config.backbone, layer)
        self.layers, self.norm = backbone.layers, backbone.norm
        self.placeholder = nn.Parameter(torch.zeros(D)) if config.placeholder == "learned" else None
        self._backbone = [backbone]  # in a list: not a second owner of the layers
        self.borrowed = Borrowed(self.vocab)

    @property
    def backbone(self) -> Backbone:
        """The layers and the final norm, as they are run."""
        return self._backbone[0]

    def attach(self, target: Target) -> None:
        """Borrow the target's embedding and the rows of its output matrix that the draft vocabulary needs."""
        self.borrowed.attach(target)

    def start(self, target: Target, generator: torch.Generator) -> None:
        """Small normal matrices; the final norm from the target's, whose output matrix reads what it scales."""
        start_linear(self, generator)
        with torch.no_grad():
            self.norm.weight.copy_(target.output_weight()[1])
            if self.placeholder is not None:
                self.placeholder.copy_(target.embed(torch.tensor([self.config.mask_token_id]))[0])

    def train_hidden(self, block: BlockInput) -> Tensor:
        """Hidden states of the rows that predict the block's drafts: [N,K,D]."""
        return self.hidden(block.anchor, block.previous.shape[1], self.shared_past(block.history))

    def hidden(self, anchor: Tensor, K: int, past: Past, positions: Tensor | None = None) -> Tensor:
        """anchor [N], its ``positions`` [N] where the past has global ones -> [N,K,D]."""
        return self.layout.drafts(self.backbone(*self.queries(anchor, K, positions), None, past))

    def queries(self, anchor: Tensor, K: int, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The block's rows before the first layer [N,Q,D] and their positions [Q] or [N,Q]."""
        words = self.borrowed.target.embed(anchor[:, None]).to(self.norm.weight.dtype)
        empty: Tensor | None = self.placeholder
        if empty is None:
            mask = torch.tensor([self.config.mask_token_id], device=anchor.device)
            empty = self.borrowed.target.embed(mask)[0].to(words.dtype)
        rows = torch.cat([words, empty.expand(len(anchor), self.layout.placeholders(K), -1)], 1)
        local = self.layout.query_positions(K).to(anchor.device)
        return rows, local if positions is None else positions[:, None] + local

    def shared_past(self, history: History | None) -> SharedPast:
        """The history of training blocks, the pivot among it."""
        if history is None:
            raise RuntimeError("this drafter reads history: its blocks must bring it")
        here = history.pivot[:, None]
        index = torch.cat([history.rows, here], 1)
        distance = torch.cat([history.distance, torch.ones_like(here)], 1)
        real = torch.cat([history.real, torch.ones_like(here, dtype=torch.bool)], 1)
        return SharedPast(self.fuse(history.taps), index, distance, real, self.config.backbone)

    def fuse(self, taps: Tensor) -> Tensor:
        """Context rows: [...,n,D] -> [...,D]."""
        return self.fuse_norm(self.fuse_taps(taps.to(self.norm.weight.dtype).flatten(-2)))  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's own output matrix, over the draft vocabulary: [...,D] -> [...,V']."""
        return self.borrowed.logits(hidden)

    def draft_hidden(self, view: View) -> Tensor:
        """Hidden states for a round of decoding: [B,K,D]. The block is always whole, whatever the neighbours want."""
        memory: PastMemory = view.memory
        return self.hidden(view.anchor, self.config.K, memory.read(view.rows), memory.anchors(view.rows))

    def new_memory(self, rows: int) -> PastMemory:
        """Keys and values of the verified positions."""
        return PastMemory(self.backbone, self.fuse, rows, self.config.window)

    def state_bytes(self, context: int) -> int:
        """Keys and values of the history, fp32."""
        return past_bytes(self.config.backbone, context, self.config.window)

    def freeze(self) -> None:
        """Ready for decoding."""
        self.requires_grad_(False)
        for layer in self.layers:
            freeze_for_cpu(layer, (("k_proj", "v_proj"), ("gate_proj", "up_proj")))
        self.borrowed.freeze()
