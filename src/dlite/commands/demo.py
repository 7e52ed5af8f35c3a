"""``dlite demo``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dlite.commands import options


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/demo"),
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "shipped",
    k: Annotated[int, typer.Option("--k", "-K", help="Drafts a round; 3 pays best on most CPUs.")] = 3,
    max_new_tokens: options.LongestAnswer = 64,
) -> None:
    """Show it working: chat, code, tools and an agent's history, accepted drafts marked, then plain against DLite."""
    from dlite.api import load_drafter, load_target
    from dlite.demo import demo as run

    model = load_target(target)
    same = run(
        model, load_drafter(drafter, model), out, K=k, max_new_tokens=max_new_tokens, name=drafter, argv=sys.argv
    )
    raise typer.Exit(0 if same else 1)
