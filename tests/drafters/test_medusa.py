"""Medusa: what its heads read and how they begin; it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.config import DrafterRecipe, load_recipe
from dlite.drafters.medusa import Medusa
from dlite.drafters.network import BlockInput
from dlite.errors import ConfigError
from dlite.nn.losses import position_weights
from dlite.target.hf import HFTarget
from tests.drafters.learning import learns
from tests.drafters.support import tiny
from tests.support import tiny_model

HF = HFTarget(tiny_model("llama"), None, "tiny")


def made(**settings: Any) -> Medusa:
    """As training begins."""
    medusa = Medusa(Medusa.configure(DrafterRecipe(kind="medusa", K=3, **settings), HF.info, None)).attach(HF)
    medusa.start(HF, torch.Generator())
    return medusa


def block(taps: Tensor) -> BlockInput:
    N = len(taps)
    previous = torch.arange(3).expand(N, 3)
    return BlockInput(taps, previous[:, 0], previous[:, 0], previous)


@pytest.mark.parametrize("last_tap", ["normed", "raw", None])
def test_every_head_begins_as_the_targets_own_next_token(last_tap: Any) -> None:
    """By default the heads read what the target's output matrix reads: the state behind its final norm."""
    taps = torch.randn(4, 1, HF.info.hidden_size)
    logits = made(last_tap=last_tap)(block(taps)).logits
    wanted = taps[:, 0] @ HF.output_weight()[0].T if last_tap == "raw" else HF.last_tap_logits(taps[:, 0])
    torch.testing.assert_close(logits, wanted[:, None].expand(-1, 3, -1))


def test_it_reads_the_last_layer_at_the_pivot_and_no_token() -> None:
    medusa = tiny("medusa", HF)
    assert medusa.taps == (HF.info.num_layers - 1,)
    seen = block(torch.randn(2, 1, HF.info.hidden_size))
    other = replace(seen, anchor=seen.anchor + 5, before=seen.before + 6, previous=seen.previous + 7)
    assert torch.equal(medusa(seen).logits, medusa(other).logits)


def test_a_shorter_block_uses_the_first_heads() -> None:
    medusa = tiny("medusa", HF)
    seen = block(torch.randn(2, 1, HF.info.hidden_size))
    short = medusa(replace(seen, previous=seen.previous[:, :2])).logits
    torch.testing.assert_close(short, medusa(seen).logits[:, :2])


def test_the_recipe_weighs_heads_as_the_paper() -> None:
    plan = load_recipe("medusa")
    weights = position_weights(plan.drafter.K, plan.train.gamma, torch.tensor([plan.drafter.K]))
    wanted = [0.8**k for k in range(plan.drafter.K)]
    assert weights[0].tolist() == pytest.approx(wanted, rel=1e-4)
    assert plan.train.gamma == pytest.approx(-1 / math.log(0.8), abs=1e-4)


def test_it_has_no_options() -> None:
    with pytest.raises(ConfigError, match="drafter.options.heads does not fit the drafter 'medusa'"):
        made(options={"heads": 3})


def test_it_learns(tmp_path: Path) -> None:
    learns({"kind": "medusa"}, tmp_path)
