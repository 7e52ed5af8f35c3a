"""``dlite train`` and ``dlite recipes``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dlite.commands import options


def train(
    recipe: Annotated[str, typer.Argument(help="Recipe name (see dlite recipes) or .toml file.")],
    data: Annotated[list[Path], typer.Option(help="Files made by dlite regenerate; may be given more than once.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on after a stop.")],
    store: Annotated[
        list[Path] | None,
        typer.Option(
            help="A feature store, given more than once to mix or to weigh; without one, capture while training."
        ),
    ] = None,
    init: Annotated[
        str | None, typer.Option(help="Start from this drafter ('shipped' or a folder) instead of fresh weights.")
    ] = None,
    set_: options.Changes = None,
    device: Annotated[str, typer.Option(help="cpu, or auto: the GPU that accelerate gives this process.")] = "auto",
    dtype: options.Dtype = "float32",
) -> None:
    """Train a drafter: every stage of the recipe as one run that can be stopped and started again.

    On several GPUs: accelerate launch -m dlite train ... Losses, tau on held-out prompts and TensorBoard logs lie in --out.

    Example: dlite train smollm2-135m --data answers.jsonl --store features/ --out runs/first
    """
    from dlite.progress import TrainBar
    from dlite.train.run import train_from_files

    with TrainBar() as bar:
        folder = train_from_files(recipe, set_ or (), data, out, store or (), init, device, dtype, bar.show)
    print(json.dumps({"drafter": str(folder)}))


def recipes() -> None:
    """List the recipes that ship with dlite."""
    from dlite.config import load_recipe, recipe_names

    for name in recipe_names():
        plan = load_recipe(name)
        stages = ", ".join(s.name for s in plan.stages)
        print(f"{name:16} {plan.target:18} K={plan.drafter.K}  {plan.drafter.num_layers} layers  stages: {stages}")
