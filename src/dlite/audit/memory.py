"""What the target's key-values and the drafts' state take, at the concurrency that is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlite.bench.run import Arm
from dlite.target.base import Target


@dataclass(frozen=True)
class Footprint:
    """Bytes of all ``requests`` together behind ``context`` tokens each; weights are left out."""

    arm: str
    requests: int
    context: int
    kv_bytes: int
    state_bytes: int


def footprints(target: Target, arms: Sequence[Arm], contexts: Sequence[int], requests: int) -> list[Footprint]:
    """Every arm at every context length."""
    token = kv_bytes_per_token(target)
    return [
        Footprint(arm.name, requests, length, requests * length * token, requests * arm.drafter.state_bytes(length))
        for length in contexts
        for arm in arms
    ]


def kv_bytes_per_token(target: Target) -> int:
    """Keys and values of one position in every layer; an upper bound where layers look back through a window only."""
    layer = target.info.layer
    return 2 * target.info.num_layers * layer.num_kv_heads * layer.head_dim * target.dtype.itemsize
