"""What the target's key-values and the drafts' state take, at the concurrency that is served."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

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


def fitting_batches(target: Target, context: int, most: int) -> list[int]:
    """1, 2, 4, ... requests at a time, ``most`` included, whose key-values take no more than a third of the free memory."""
    sizes = sorted({*(1 << i for i in range(most.bit_length())), most})
    each, free = context * kv_bytes_per_token(target), free_bytes(target.device)
    return [size for size in sizes if size == 1 or 3 * size * each <= free]


def free_bytes(device: torch.device) -> int:
    """Memory that nobody uses now."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
