from __future__ import annotations

from typing import Any

from dlite.audit.memory import fitting_batches, footprints, free_bytes, kv_bytes_per_token
from dlite.audit.replay import Replay
from dlite.target.hf import HFTarget
from tests.support import tiny_model


def test_bytes_of_all_requests_together(target: Any, done: Replay) -> None:
    rows = footprints(target, done.arms, [100, 1000], 8)
    assert [(r.arm, r.context) for r in rows] == [(a.name, c) for c in (100, 1000) for a in done.arms]
    token = kv_bytes_per_token(target)
    assert rows[1].kv_bytes == 8 * 100 * token
    assert rows[1].state_bytes == 8 * 10 * 100
    assert rows[0].state_bytes == 0


def test_key_values_are_what_the_cache_holds() -> None:
    target = HFTarget(tiny_model("llama"), None, "llama")
    cache = target.new_cache(1, 8)
    import torch

    target.forward(torch.tensor([[3, 4, 5, 6]]), cache, 0, (), "last")
    held = sum(k[0, :, :4].numel() + v[0, :, :4].numel() for k, v in cache.layers)
    assert kv_bytes_per_token(target) * 4 == held * 4


def test_powers_of_two_up_to_the_most(target: Any) -> None:
    assert [fitting_batches(target, 1, most) for most in (1, 4, 6)] == [[1], [1, 2, 4], [1, 2, 4, 6]]
    assert free_bytes(target.device) > 0
    assert fitting_batches(target, free_bytes(target.device), 8) == [1]
