"""A multi-token predictor in DeepSeek's form (DeepSeek-V3, 2412.19437): the target's last hidden state, drafted on.

One module serves every step, as in FastMTP (2509.18362), which trains its steps with weights that fall by a constant
factor.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dlite.config import DrafterRecipe
from dlite.drafters.borrowed import LastTap
from dlite.drafters.network import NoOptions, options
from dlite.drafters.recursive import RecursiveConfig, RecursiveDrafter, recursive_values
from dlite.nn.recursive import MergedEntry
from dlite.target.base import TargetInfo


@dataclass(frozen=True, kw_only=True)
class MTPConfig(RecursiveConfig):
    """``last_tap``: whether hidden states, the target's and its own, are handed on before or after the norm."""

    last_tap: LastTap


class MTP(RecursiveDrafter):
    """h' = M [norm(h); norm(E(x))] through one decoder layer, whose output is the next h."""

    name = "mtp"
    Config = MTPConfig
    config: MTPConfig

    def __init__(self, config: MTPConfig) -> None:
        super().__init__(config, MergedEntry(config.backbone))

    @staticmethod
    def configure(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> MTPConfig:
        """A multi-token predictor for this target."""
        options(recipe, NoOptions)
        values = recursive_values(recipe, info, vocab)
        return MTPConfig(**values, taps=(info.num_layers - 1,), last_tap=recipe.last_tap or "normed")  # type: ignore[arg-type]

    def features(self, taps: Tensor) -> Tensor:
        """The last hidden state: [...,1,D] -> [...,D]."""
        return self.borrowed.last_hidden(taps, self.config.last_tap).to(self.body.norm.weight.dtype)

    def handed_on(self, state: Tensor, hidden: Tensor) -> Tensor:
        """The layer's own output, read as the target's is."""
        return hidden if self.config.last_tap == "normed" else state
