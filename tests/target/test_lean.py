"""The lean decoder walks the same weights as the model it stands for, odd configurations included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dlite.target.hf import HFTarget
from tests.support import TINY_VOCAB, tiny_model

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "odd"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 12}),
        ("llama", {"num_key_value_heads": 4, "rope_parameters": LLAMA3}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"num_key_value_heads": 1}),
        ("qwen3", {"head_dim": 16, "attention_bias": True}),
    ],
)
def test_odd_configurations_keep_their_numbers(family: str, odd: dict[str, Any]) -> None:
    target = HFTarget(tiny_model(family, **odd), None, family)
    assert target._lean is not None
    tokens = torch.randint(TINY_VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))
    cache = target.new_cache(2, 24)
    target.forward(tokens[:, :11], cache, 0, (), "last")
    cache.lengths = [11, 11]
    found = target.forward(tokens[:, 11:], cache, 0, (0, 3), "all")
    states = tiny_model(family, **odd)(tokens, output_hidden_states=True)
    torch.testing.assert_close(found.logits, states.logits[:, 11:], rtol=1e-4, atol=2e-3)
    torch.testing.assert_close(found.taps[:, :, 0], states.hidden_states[1][:, 11:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "odd"),
    [
        ("gemma3", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}),
    ],
)
def test_what_it_does_not_know_runs_through_the_model_itself(family: str, odd: dict[str, Any]) -> None:
    target = HFTarget(tiny_model(family, **odd), None, family)
    assert target._lean is None
    tokens = torch.randint(TINY_VOCAB, (2, 12), generator=torch.Generator().manual_seed(0))
    found = target.forward(tokens, target.new_cache(2, 12), 0, (), "all")
    torch.testing.assert_close(found.logits, tiny_model(family, **odd)(tokens).logits, rtol=1e-4, atol=2e-3)


def test_a_model_that_was_not_frozen_is_left_alone() -> None:
    assert HFTarget(tiny_model("llama"), None, "llama", freeze=False)._lean is None
