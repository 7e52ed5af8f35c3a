"""A toy target that talks, a drafter of any kind that knows little, and logs to adapt it to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dlite.checkpoint import save_drafter
from dlite.config import DrafterRecipe
from dlite.drafters import network_class
from tests.audit.support import agent_trace, talker
from tests.data.support import BARE

SHORT = ("train.batch_blocks=48", "features.dtype=float32", "stages.0.lr=1.5e-2", "stages.0.epochs=12")
SIZES: dict[str, Any] = {"K": 3, "num_layers": 1, "num_taps": 3, "rank": 8, "history": 16}


def make_target() -> Any:
    """What it answers depends on how a question ends."""
    return talker(template=BARE, context=700)


def make_start(target: Any, folder: Path, kind: str = "dlite", seed: int = 0) -> Path:
    """A drafter with its first weights."""
    make = network_class(kind)
    network = make(make.configure(DrafterRecipe(kind=kind, **SIZES), target.info, None)).attach(target)
    network.start(target, torch.Generator().manual_seed(seed))
    save_drafter(network, folder, target.info)
    return folder


def write_log(path: Path, count: int, *, name: str = "run", steps: int = 4) -> Path:
    """Agent runs of a few steps each."""
    traces = [agent_trace(f"{name}{i}", steps, 40) for i in range(count)]
    records = [{"instance_id": t.id, "messages": list(t.messages)} for t in traces]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path
