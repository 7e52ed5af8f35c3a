"""A small whole run on the toy target."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from dlite.checkpoint import WEIGHTS
from dlite.config import Recipe, parse_recipe
from dlite.drafters import network_class
from dlite.features.capture import Capturer
from dlite.features.store import Store, write_store
from dlite.train.loop import Progress, train
from dlite.train.run import capture_settings
from dlite.train.source import OnlineSource, Source, StoreSource
from dlite.types import Conversation
from tests.features.support import TOY, several

TEACHER = {"name": "teacher", "window": 2, "steps": 4, "losses": {"ce": 1.0}, "lr": 1e-2}
WARM_UP = {
    "name": "warm-up", "steps": 3, "losses": {"kl_teacher": 1.0}, "lr": 1e-2,
    "from_teacher": ["sequential_head"], "freeze": ["sequential_head"],
}  # fmt: skip
STABLE = {"name": "stable", "steps": 5, "losses": {"ce": 0.1, "l1": 1.0}, "lr": 1e-2}
STAGES = (TEACHER, WARM_UP, STABLE)


def recipe(
    stages: Sequence[dict[str, Any]] = STAGES, *, drafter: dict[str, Any] | None = None, **settings: Any
) -> Recipe:
    """A one-layer drafter of the toy; ``settings`` go to the [train] part."""
    network = {"K": 3, "num_layers": 1, "num_taps": 3, "rank": 8, "mask_token_id": 11} | (drafter or {})
    steps = {"batch_blocks": 12, "batch_sequences": 2, "save_every": 4, "eval_every": 5, "eval_tokens": 12} | settings
    return parse_recipe({"target": "toy", "drafter": network, "train": steps, "stages": list(stages)}, "toy")


@cache
def talks() -> tuple[Conversation, ...]:
    return tuple(several(8, (10, 10)))


def source(plan: Recipe, store: Path | None = None) -> Source:
    """Blocks of the toy's conversations, captured while training, or stored before."""
    settings = capture_settings(plan, TOY.info)
    if store is None:
        return OnlineSource(Capturer(TOY, settings), talks(), plan.train.batch_sequences, plan.train.seed)
    write_store(store, Capturer(TOY, settings), talks(), dtype="float32", shard_blocks=50)
    return StoreSource(Store(store), plan.train.batch_blocks, plan.train.seed)


def run(
    plan: Recipe,
    out: Path,
    *,
    store: Path | None = None,
    report: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Path:
    """Train the toy's drafter; tau is measured on two short prompts."""
    config = network_class(plan.drafter.kind).configure(plan.drafter, TOY.info, options.pop("vocab", None))
    prompts = [(3, 1, 4), (2, 7, 1, 8)]
    return train(plan, config, TOY, source(plan, store), out, held_out=prompts, report=report, **options)


def losses(out: Path) -> list[dict[str, Any]]:
    """What was logged of each step, without its clock."""
    rows = [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def taus(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "tau.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / WEIGHTS)


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def log_equal(left: Path, right: Path) -> bool:
    return losses(left) == losses(right) and taus(left) == taus(right)
