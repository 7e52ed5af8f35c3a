"""``dlite features``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dlite.commands import options


def features(
    conversations: Annotated[list[Path], typer.Argument(help="Files made by dlite regenerate.")],
    recipe: Annotated[str, typer.Option(help="Recipe name or .toml file: taps, K and anchors come from it.")],
    out: Annotated[Path, typer.Option(help="Folder of the store; run again to go on after a stop.")],
    set_: options.Changes = None,
    history: Annotated[
        int | None,
        typer.Option(help="Positions kept before each pivot; by default what the recipe's drafter and stages need."),
    ] = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
) -> None:
    """Run the target over conversations once and store what the training blocks need, at anchors only.

    Prints a size estimate before it starts. Without a store, dlite train captures while it trains and stores nothing.

    Example: dlite features answers.jsonl --recipe smollm2-135m --out features/
    """
    from dlite.api import load_target
    from dlite.config import load_recipe
    from dlite.data.conversations import check_vocabulary, training_split
    from dlite.features.capture import Capturer
    from dlite.features.store import estimate, write_store
    from dlite.progress import counting_bar
    from dlite.train.run import capture_settings

    plan = load_recipe(recipe, set_ or ())
    train, _ = training_split(conversations, keep_truncated=plan.features.truncated == "keep")
    train.sort(key=lambda c: c.ids)  # turns of one conversation side by side: a shared beginning is computed once
    model = load_target(plan.target, device=device, dtype=dtype)
    check_vocabulary(train, model.info)
    settings = capture_settings(plan, model.info, history)
    size = estimate(train, settings, model.info.hidden_size, plan.features.dtype)
    found = f"{size.conversations} conversations, {size.anchors} anchors"
    print(f"{found}: at most {size.bytes / 1e9:.2f} GB in {out}", file=sys.stderr)
    with counting_bar("conversations", len(train)) as advance:
        added = write_store(
            out,
            Capturer(model, settings),
            train,
            dtype=plan.features.dtype,
            progress=lambda blocks: advance(1, f"{blocks} blocks"),
        )
    print(json.dumps({"blocks_added": added, "out": str(out)}))
