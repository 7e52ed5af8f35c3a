"""From turns to a fine-tuned drafter: the target's own answers, their anchors, a short training. What was done is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlite.audit.turns import Turn
from dlite.checkpoint import check_copies, load_drafter
from dlite.config import Recipe, load_recipe, recipe_names
from dlite.data.conversations import Recorded, check_vocabulary, training_split
from dlite.data.prompts import Prompt
from dlite.data.regenerate import RegenerateSettings, regenerate
from dlite.drafters import network_class, shipped_folder
from dlite.drafters.none import NoDrafter
from dlite.errors import ConfigError, DataError
from dlite.features.capture import Capturer, CaptureSettings
from dlite.features.store import Store, write_store
from dlite.progress import TrainBar, counting_bar
from dlite.target.base import Target, TargetInfo
from dlite.train.loop import train
from dlite.train.source import StoreSource
from dlite.types import Conversation

RECIPE = "dlite-adapt"


@dataclass(frozen=True)
class Learned:
    """The finished drafter and what it saw."""

    folder: Path
    conversations: int
    tokens: int
    anchors: int


def weights_folder(name: str, target: Target) -> Path:
    """The folder behind a drafter's name. Errors: ``ConfigError`` for one without weights."""
    folder = shipped_folder(target) if name == "shipped" else Path(name)
    if not folder.exists():
        kind = network_class(name.partition(":")[0]).name
        raise ConfigError(f"a {kind} has weights. Expected its folder, made by dlite train. Give the folder's path.")
    return folder


def load_start(folder: Path, target: Target) -> Any:
    """The network to go on from. Errors: ``CheckpointError``."""
    start, provenance = load_drafter(folder, target.info)
    check_copies(provenance, target, start.config.draft_vocab)
    return start


def adaptation(start: Any, info: TargetInfo, recipe: str, overrides: Sequence[str]) -> Recipe:
    """The recipe with the drafter's own kind and K; the default one also with the losses that this kind is trained with."""
    own = _own_losses(start) if recipe == RECIPE else []
    found = load_recipe(recipe, [*own, *overrides])
    drafter = found.drafter.model_copy(update={"kind": start.name, "K": start.config.K})
    return found.model_copy(update={"target": info.name, "drafter": drafter})


def learn(
    target: Target, start: Any, turns: Sequence[Turn], recipe: Recipe, out: Path, limit: int, batch: int
) -> Learned:
    """Fine-tune ``start`` on the target's own answers to the turns, at most ``limit`` tokens each."""
    _answer(target, turns, out / "answers.jsonl", limit, batch)
    conversations, held = training_split([out / "answers.jsonl"], keep_truncated=recipe.features.truncated == "keep")
    if not conversations:
        raise DataError(
            f"none of {len(turns)} answers may be trained on: they loop or are cut. Give other traces, or raise "
            "--max-new-tokens."
        )
    check_vocabulary(conversations, target.info)
    store = _captured(target, start, conversations, recipe, out / "store")
    settings = recipe.train.model_copy(update={"batch_blocks": min(recipe.train.batch_blocks, len(store))})
    recipe = recipe.model_copy(update={"train": settings})
    folder = out / "run" / "drafter"
    if not (folder / "training.json").exists():
        source = StoreSource(store, settings.batch_blocks, settings.seed, settings.neighbours)
        prompts = [c.ids[: c.wrote.index(True)] for c in held][: settings.eval_prompts]
        with TrainBar() as bar:
            train(recipe, start.config, target, source, out / "run", held_out=prompts, init=start, report=bar.show)
    return Learned(folder, len(conversations), sum(sum(c.wrote) for c in conversations), len(store))


def _answer(target: Target, turns: Sequence[Turn], path: Path, limit: int, batch: int) -> None:
    prompts = [Prompt(turn.id, "traces", ids=turn.ids, trace=turn.trace) for turn in turns]
    with counting_bar("answers", len(prompts)) as advance:

        def seen(conversation: Conversation) -> None:
            advance(1, f"{len(conversation.ids)} tokens")

        regenerate(target, NoDrafter(), prompts, path, RegenerateSettings(limit, batch), seen)


def _captured(target: Target, start: Any, conversations: Sequence[Recorded], recipe: Recipe, folder: Path) -> Store:
    settings = CaptureSettings(
        taps=tuple(start.config.taps),
        K=start.config.K,
        anchors_per_sequence=recipe.features.anchors_per_sequence,
        history=start.history,
        whole_blocks=recipe.features.whole_blocks,
        max_length=recipe.features.max_length,
        seed=recipe.train.seed,
    )
    capturer = Capturer(target, settings)
    usable = sorted((c for c in conversations if capturer.anchors(c)), key=lambda c: c.ids)
    with counting_bar("anchors", len(usable)) as advance:
        write_store(
            folder,
            capturer,
            usable,
            dtype=recipe.features.dtype,
            progress=lambda blocks: advance(1, f"{blocks} anchors"),
        )
    return Store(folder)


def _own_losses(start: Any) -> list[str]:
    """Overrides with the losses and gamma of the last stage of the kind's own recipe, where one ships."""
    if start.name not in recipe_names():
        return ["stages.0.losses.confidence=1.0"] if getattr(start.config, "confidence", False) is True else []
    own = load_recipe(start.name)
    losses = {name: value for name, value in own.stages[-1].losses.model_dump().items() if value}
    inside = ", ".join(f"{name} = {value}" for name, value in losses.items())
    return [f"stages.0.losses={{ {inside} }}", f"train.gamma={own.train.gamma}", f"train.weights={own.train.weights}"]
