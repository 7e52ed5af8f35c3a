"""The arms of a study: trained on one feature store with one budget, or made ready from what others have."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlite.checkpoint import load_drafter as load_folder
from dlite.checkpoint import save_drafter
from dlite.data.conversations import training_split
from dlite.drafters import load_drafter, network_class
from dlite.drafters.base import Drafter
from dlite.errors import ConfigError, DataError
from dlite.features.capture import Capturer, CaptureSettings
from dlite.features.store import Store, write_store
from dlite.study.plan import ArmPlan, StudyPlan
from dlite.target.base import Target
from dlite.train.loop import Progress, train
from dlite.train.source import StoreSource
from dlite.train.stages import frequent_tokens
from dlite.types import Conversation


@dataclass(frozen=True)
class Data:
    """What every arm is trained on: a store of all layers, the conversations behind it, and held-out prompts.

    ``fixed`` is a store of held-out anchors with whole blocks, where the arms are compared; None if nothing is held out.
    """

    store: Path
    fixed: Path | None
    conversations: Sequence[Conversation]
    held_out: Sequence[tuple[int, ...]]


def capture(
    plan: StudyPlan, target: Target, paths: Sequence[Path], out: Path, K: int, progress: Callable[[int], None] | None
) -> Data:
    """Capture the study's conversations once; a stopped capture goes on."""
    train_on, held = training_split(paths, keep_truncated=True)
    if not train_on:
        raise DataError("no conversation may be trained on: all are looping or held out. Regenerate more.")
    step = max(1, len(train_on) // plan.conversations)
    chosen = sorted(train_on[::step][: plan.conversations], key=lambda c: c.ids)
    settings = CaptureSettings(
        taps=tuple(range(target.info.num_layers)), K=K, history=plan.history, whole_blocks=False,
        max_length=plan.max_context, seed=plan.seed,
    )  # fmt: skip
    store, fixed = out / "store", out / "held-out"
    write_store(store, Capturer(target, settings), chosen, progress=progress)
    some = held[:: max(1, len(held) // plan.held_out)][: plan.held_out]
    whole = replace(settings, whole_blocks=True, anchors_per_sequence=plan.anchors_per_answer)
    if some:
        write_store(fixed, Capturer(target, whole), some)
    prompts = [c.ids[: c.wrote.index(True)] for c in held]
    return Data(store, fixed if some else None, chosen, prompts[:: max(1, len(prompts) // 16)][:16])


def prepare(
    plan: StudyPlan, arm: ArmPlan, target: Target, data: Data, out: Path, report: Callable[[Progress], None] | None
) -> None:
    """Train an arm, or write the weights it borrows; nothing to do where that was done before."""
    folder = out / "arms" / arm.name
    if arm.weights is not None:
        drafter, _ = load_folder(drafter_folder(out, arm.weights), target.info)
        try:
            changed = type(drafter)(replace(drafter.config, **arm.changed))
        except TypeError as error:
            raise ConfigError(f"arm {arm.name} changes what a {drafter.name} does not have: {error}.") from None
        changed.load_state_dict(drafter.state_dict())
        save_drafter(changed, folder / "drafter", target.info)
    if arm.recipe is None or (folder / "drafter" / "training.json").exists():
        return
    recipe = plan.recipe(arm)
    make = network_class(recipe.drafter.kind)
    vocab = frequent_tokens(data.conversations, recipe.drafter.draft_vocab_size, sorted(target.info.stop_ids))
    config = make.configure(recipe.drafter, target.info, vocab)
    store = Store(data.store, taps=config.taps)
    source = StoreSource(store, plan.batch_blocks, plan.seed, recipe.train.neighbours)
    train(recipe, config, target, source, folder, held_out=data.held_out, report=report)


def ready(arm: ArmPlan, target: Target, out: Path) -> Drafter:
    """An arm's drafter, ready to decode."""
    if arm.drafter is None:
        return load_drafter(str(drafter_folder(out, arm.name)), target)
    name, _, other = arm.drafter.partition("{")
    return load_drafter(name + str(drafter_folder(out, other.rstrip("}"))) if other else name, target)


def drafter_folder(out: Path, arm: str) -> Path:
    """Where an arm's weights lie."""
    return out / "arms" / arm / "drafter"


def facts(arm: ArmPlan, drafter: Drafter, out: Path) -> dict[str, Any]:
    """What an arm is and cost, as plain values."""
    found: dict[str, Any] = {
        "name": arm.name,
        "drafter": drafter.name,
        "set": list(arm.set),
        "weights_of": arm.weights,
        "changed": arm.changed,
        "state_bytes": {str(context): drafter.state_bytes(context) for context in (1024, 8192)},
    }
    training = drafter_folder(out, arm.name) / "training.json"
    if training.exists():
        record = json.loads(training.read_text())
        found |= {
            key: record[key] for key in ("parameters", "steps", "anchor_views", "seconds", "final_loss", "held_out")
        }
        found["stages"] = [[s["name"], s["steps"]] for s in record["recipe"]["stages"]]
    return found
