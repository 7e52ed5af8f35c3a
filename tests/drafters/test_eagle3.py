"""EAGLE-3: which layers it reads, and that the fused features are its residual stream."""

from __future__ import annotations

from dataclasses import replace

import torch

from dlite.config import DrafterRecipe
from dlite.drafters.eagle3 import Eagle3
from dlite.drafters.network import BlockInput
from tests.drafters.support import tiny
from tests.features.support import TOY


def test_three_taps_are_those_of_the_release() -> None:
    info = replace(TOY.info, num_layers=32)
    config = Eagle3.configure(DrafterRecipe(kind="eagle3", num_taps=3, num_layers=4), info, None)
    assert config.taps == (1, 15, 28)
    assert config.backbone.num_layers == 1
    five = Eagle3.configure(DrafterRecipe(kind="eagle3", num_taps=5), info, None)
    assert five.taps == (1, 8, 15, 21, 28)


def test_a_layer_that_adds_nothing_hands_the_features_on() -> None:
    """Then every draft reads the pivot's g through the norm and the target's matrix; the words enter by attention only."""
    drafter = tiny("eagle3", TOY, taps=(0, 2, 4))
    torch.nn.init.zeros_(drafter.body.layer.self_attn.o_proj.weight)
    torch.nn.init.zeros_(drafter.body.layer.mlp.down_proj.weight)
    taps, previous = torch.randn(2, 3, TOY.info.hidden_size), torch.tensor([[1, 2, 3], [4, 5, 6]])
    logits = drafter(BlockInput(taps, previous[:, 0], previous[:, 0], previous)).logits
    fused = torch.cat([taps[:, 0], taps[:, 1], taps[:, 2]], 1) @ drafter.fuse_taps.weight.T
    expected = drafter.body.norm(fused) @ TOY.output_weight()[0].T
    torch.testing.assert_close(logits, expected[:, None].expand(-1, 3, -1))
