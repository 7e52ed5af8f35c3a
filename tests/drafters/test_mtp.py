"""The multi-token predictor: which hidden state it reads and hands on."""

from __future__ import annotations

import torch

from dlite.config import DrafterRecipe
from dlite.drafters.mtp import MTP
from dlite.target.hf import HFTarget
from tests.drafters.support import tiny
from tests.features.support import TOY
from tests.support import tiny_model


def test_hidden_states_are_read_and_handed_on_on_the_same_side_of_the_norm() -> None:
    target = HFTarget(tiny_model("llama", num_hidden_layers=6), None, "tiny")
    taps, state, hidden = (torch.randn(shape) for shape in ((3, 1, 32), (3, 32), (3, 32)))
    normed, raw = tiny("mtp", target, last_tap="normed"), tiny("mtp", target, last_tap="raw")
    torch.testing.assert_close(normed.features(taps), target.final_norm(taps[:, 0]))
    torch.testing.assert_close(raw.features(taps), taps[:, 0])
    assert normed.handed_on(state, hidden) is hidden
    assert raw.handed_on(state, hidden) is state


def test_it_is_one_layer_on_the_last_tap_alone() -> None:
    config = MTP.configure(DrafterRecipe(kind="mtp", num_layers=3, window=128), TOY.info, None)
    assert (config.taps, config.backbone.num_layers, config.last_tap) == ((5,), 1, "normed")
    assert (config.window, config.history) == (128, 127)
