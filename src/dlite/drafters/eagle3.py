"""EAGLE-3: features fused from low, middle and high layers, drafted on by one layer token by token (2503.01840)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters.network import NoOptions, options
from dlite.drafters.recursive import RecursiveConfig, RecursiveDrafter, recursive_values
from dlite.nn.cpu import PackedLinear, can_pack
from dlite.nn.layout import spread_taps
from dlite.nn.recursive import WideEntry
from dlite.target.base import TargetInfo


class Eagle3(RecursiveDrafter):
    """g = W [taps]; the layer attends to [norm(E(x)); norm(g)] beside the stream g, and its output is the next g."""

    name = "eagle3"
    Config = RecursiveConfig

    def __init__(self, config: RecursiveConfig) -> None:
        super().__init__(config, WideEntry(config.backbone))
        D = config.backbone.hidden_size
        self.fuse_taps: nn.Module = nn.Linear(len(config.taps) * D, D, bias=False)

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> RecursiveConfig:
        """An EAGLE-3 for this target."""
        options(recipe, NoOptions)
        taps = recipe.taps or spread_taps(info.num_layers, recipe.num_taps)
        return RecursiveConfig(**recursive_values(recipe, info, vocab), taps=taps)  # type: ignore[arg-type]

    def features(self, taps: Tensor) -> Tensor:
        """The fused g: [...,n,D] -> [...,D]."""
        return cast(Tensor, self.fuse_taps(taps.to(self.body.norm.weight.dtype).flatten(-2)))

    def freeze(self) -> Eagle3:
        """Ready for decoding."""
        super().freeze()
        weight = self.fuse_taps.weight
        if isinstance(weight, Tensor) and can_pack(weight):
            self.fuse_taps = PackedLinear(weight)
        return self
