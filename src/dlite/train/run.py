"""From a recipe and files to a finished drafter: what ``dlite train`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from dlite.checkpoint import check_copies, load_drafter
from dlite.config import Recipe, load_recipe
from dlite.data.conversations import check_vocabulary, training_split
from dlite.drafters import network_class, shipped_folder
from dlite.errors import ConfigError, DataError
from dlite.features.capture import Capturer, CaptureSettings
from dlite.features.store import Store
from dlite.target.base import Target, TargetInfo
from dlite.target.load import load_target
from dlite.train.loop import Progress, train
from dlite.train.source import OnlineSource, Source, StoreSource
from dlite.train.stages import frequent_tokens, teacher_config
from dlite.types import Conversation


def train_from_files(
    recipe_name: str,
    overrides: Sequence[str],
    data: Sequence[Path],
    out: Path,
    stores: Sequence[Path],
    init: str | None,
    device: str,
    dtype: str,
    report: Callable[[Progress], None] | None = None,
) -> Path:
    """Run a recipe on regenerated conversations; returns the drafter's folder.

    ``device`` "auto" is where accelerate puts this process: each of several GPUs its own, or the CPU.
    """
    recipe = load_recipe(recipe_name, overrides)
    conversations, held = training_split(data, keep_truncated=recipe.features.truncated == "keep")
    if not conversations:
        raise DataError(
            f"no conversation of {', '.join(map(str, data))} may be trained on: all are truncated, looping or held out. "
            "Regenerate more, or set features.truncated=keep."
        )
    if device not in ("auto", "cpu"):
        raise ConfigError(f"device is {device!r}. Expected auto (the GPU that accelerate gives this process) or cpu.")
    target = load_target(recipe.target, device=str(PartialState(cpu=device == "cpu").device), dtype=dtype)
    check_vocabulary(conversations, target.info)
    start = None
    if init is not None:
        start, provenance = load_drafter(shipped_folder(target) if init == "shipped" else init, target.info)
        check_copies(provenance, target, start.config.draft_vocab)
    config = _config(recipe, target.info, conversations)
    if start is not None and getattr(config, "confidence", False):
        start = with_confidence(start)
    if start is not None:
        if start.name != recipe.drafter.kind:
            raise ConfigError(
                f"the drafter {init} is a {start.name}; the recipe trains a {recipe.drafter.kind}. Use the recipe it was "
                "trained with."
            )
        for part in (f.name for f in fields(config) if f.name != "draft_vocab"):
            if getattr(config, part) != getattr(start.config, part):
                raise ConfigError(
                    f"the drafter {init} has {part} {getattr(start.config, part)}; the recipe makes {getattr(config, part)}. "
                    "Use the recipe it was trained with."
                )
        config = start.config
    source = _source(recipe, config, target, conversations, stores)
    prompts = [_opening(c) for c in _spread(held, recipe.train.eval_prompts)]
    return train(recipe, config, target, source, out, held_out=prompts, init=start, report=report)


def with_confidence(drafter: Any) -> Any:
    """The same DLite with a fresh confidence head, which says 1/2 of every draft; as it is if it has one."""
    if getattr(drafter.config, "confidence", True):
        return drafter
    network = type(drafter)(replace(drafter.config, confidence=True))
    weights = {f"confidence_head.{name}": torch.zeros_like(p) for name, p in network.confidence_head.named_parameters()}
    network.load_state_dict(drafter.state_dict() | weights)
    return network


def capture_settings(recipe: Recipe, info: TargetInfo, history: int | None = None) -> CaptureSettings:
    """What a recipe wants captured; ``history`` None is what its drafter and its stages need."""
    make = network_class(recipe.drafter.kind)
    config = make.configure(recipe.drafter, info, None)
    if history is None:
        history = needed_history(recipe, config)
    return CaptureSettings(
        taps=config.taps,
        K=config.K,
        anchors_per_sequence=recipe.features.anchors_per_sequence,
        history=history,
        whole_blocks=recipe.features.whole_blocks,
        max_length=recipe.features.max_length,
        seed=recipe.train.seed,
    )


def needed_history(recipe: Recipe, config: Any) -> int:
    """Positions before the pivot that the networks of a recipe read in training."""
    make = network_class(recipe.drafter.kind)
    windows = [stage.window for stage in recipe.stages if stage.window]
    networks = [config, *(teacher_config(config, window) for window in windows)]
    with torch.device("meta"):
        return max(int(make(one).history) for one in networks)


def _config(recipe: Recipe, info: TargetInfo, conversations: Sequence[Conversation]) -> Any:
    vocab = frequent_tokens(conversations, recipe.drafter.draft_vocab_size, sorted(info.stop_ids))
    return network_class(recipe.drafter.kind).configure(recipe.drafter, info, vocab)


def _source(
    recipe: Recipe, config: Any, target: Target, conversations: Sequence[Conversation], folders: Sequence[Path]
) -> Source:
    window = needed_history(recipe, config)
    settings = capture_settings(recipe, target.info, window)
    if not folders:
        return OnlineSource(Capturer(target, settings), conversations, recipe.train.batch_sequences, recipe.train.seed)
    store = Store(*folders, taps=settings.taps, verify=True)
    found = store.manifest["settings"]
    if found["K"] != settings.K:
        raise ConfigError(
            f"the store {folders[0]} was captured with K {found['K']}; the recipe has {settings.K}. Capture again."
        )
    if store.manifest["tokenizer_hash"] != target.info.tokenizer_hash:
        raise ConfigError(
            f"the store {folders[0]} was captured from {store.manifest['target']}, not {target.info.name}. Capture again."
        )
    if found["history"] < window:
        raise ConfigError(
            f"the store {folders[0]} keeps {found['history']} positions of history; this recipe needs {window}. "
            f"Capture with --history {window}, or leave --store out."
        )
    return StoreSource(store, recipe.train.batch_blocks, recipe.train.seed, recipe.train.neighbours)


def _spread(held: Sequence[Conversation], count: int) -> list[Conversation]:
    step = max(1, len(held) // max(1, count))
    return list(held[::step][:count])


def _opening(conversation: Conversation) -> tuple[int, ...]:
    return conversation.ids[: conversation.wrote.index(True)]
