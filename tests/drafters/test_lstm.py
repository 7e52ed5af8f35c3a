"""The LSTM drafter: what its steps read, the two heads, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.config import DrafterRecipe
from dlite.drafters.lstm import LSTM
from dlite.drafters.network import BlockInput
from dlite.errors import ConfigError
from dlite.target.hf import HFTarget
from tests.drafters.learning import learns
from tests.drafters.support import tiny
from tests.support import tiny_model

HF = HFTarget(tiny_model("llama"), None, "tiny")


def block(taps: Tensor, *previous: int) -> BlockInput:
    rows = torch.tensor([previous] * len(taps))
    return BlockInput(taps, rows[:, 0], rows[:, 0], rows)


def test_step_i_reads_the_hidden_state_and_the_tokens_before_draft_i() -> None:
    lstm, taps = tiny("lstm", HF), torch.randn(2, 1, HF.info.hidden_size)
    logits = lstm(block(taps, 3, 4, 5, 6)).logits
    for changed in range(4):
        tokens = [3, 4, 5, 6]
        tokens[changed] = 9
        other = lstm(block(taps, *tokens)).logits
        same = [torch.equal(logits[:, slot], other[:, slot]) for slot in range(4)]
        assert same == [slot < changed for slot in range(4)]
    other = lstm(block(taps + 0.1 * torch.randn_like(taps), 3, 4, 5, 6)).logits
    assert not any(torch.equal(logits[:, slot], other[:, slot]) for slot in range(4))


@pytest.mark.parametrize("last_tap", ["raw", "normed", None])
def test_the_last_hidden_state_is_read_behind_the_final_norm_unless_told_otherwise(last_tap: Any) -> None:
    lstm, taps = tiny("lstm", HF, last_tap=last_tap), torch.randn(2, 1, HF.info.hidden_size)
    hidden = taps[:, 0] if last_tap == "raw" else HF.final_norm(taps[:, 0])
    torch.testing.assert_close(lstm.first(taps), lstm.state_proj(lstm.state_norm(hidden)))


def test_a_head_of_its_own_begins_as_the_targets_directions() -> None:
    D = HF.info.hidden_size
    recipe = DrafterRecipe(kind="lstm", rank=D, options={"head": "own"})
    lstm = LSTM(LSTM.configure(recipe, HF.info, None)).attach(HF)
    lstm.start(HF, torch.Generator().manual_seed(0))
    ours, lm_head = lstm.output_proj.weight, HF.output_weight()[0]
    torch.testing.assert_close(ours @ ours.T @ ours @ ours.T, lm_head @ lm_head.T, rtol=1e-3, atol=1e-2)
    states = torch.randn(2, D)
    assert torch.equal(lstm.logits(states), lstm.output_proj(states))


def test_unknown_options_are_named() -> None:
    with pytest.raises(ConfigError, match="drafter.options.cells .* Known options: cell, head"):
        tiny("lstm", HF, options={"cells": "gelu"})


@pytest.mark.parametrize("options", [{}, {"cell": "tanh", "head": "own"}], ids=str)
def test_it_learns(options: dict[str, Any], tmp_path: Path) -> None:
    learns({"kind": "lstm", "options": options}, tmp_path)


def test_it_learns_from_the_targets_distribution(tmp_path: Path) -> None:
    learns({"kind": "lstm"}, tmp_path, losses={"kl": 1.0})


def test_frozen_it_gives_the_same_logits() -> None:
    lstm, taps = tiny("lstm", HF), torch.randn(2, 1, HF.info.hidden_size)
    seen = replace(block(taps, 3, 4, 5, 6))
    before = lstm(seen).logits.detach()
    torch.testing.assert_close(lstm.freeze()(seen).logits, before, rtol=1e-4, atol=1e-4)
