"""``dlite adapt``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dlite.commands import options


def adapt(
    traces: Annotated[
        list[str], typer.Argument(help="Logs of conversations, as dlite audit reads them: files, folders, archives.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder of the work and the drafter; the same command goes on after a stop.")
    ],
    target: Annotated[
        str, typer.Option(help="The target that is served: hub id, folder, .gguf file, or built-in name.")
    ] = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option(help="The drafter to go on from: 'shipped' or a folder of any kind.")
    ] = "shipped",
    held_out: Annotated[
        list[str] | None,
        typer.Option(help="Logs to be judged on instead of a share of TRACES; may be given more than once."),
    ] = None,
    held_out_share: Annotated[float, typer.Option(help="Share of the conversations that is only judged on.")] = 0.2,
    max_calls: Annotated[int, typer.Option(help="Turns to learn from.")] = 400,
    held_out_calls: Annotated[int, typer.Option(help="Turns to be judged on.")] = 40,
    turns_per_trace: options.TurnsPerTrace = 4,
    max_new_tokens: options.LongestAnswer = 128,
    max_context: options.LongestHistory = None,
    recipe: Annotated[
        str, typer.Option(help="How to train: a recipe or .toml file; its network does not count.")
    ] = "dlite-adapt",
    set_: options.Changes = None,
    batch: Annotated[int, typer.Option(help="Answers in flight.")] = 8,
    plain: options.Plain = False,
    include_loops: Annotated[
        bool, typer.Option("--include-loops", help="Judge also by answers that repeat themselves.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which conversations are drawn and held out, and bootstrap.")] = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
) -> None:
    """Fit a drafter to your own conversations: the target answers their turns anew, the drafter learns from these answers.

    Before and after are measured on conversations that were never trained on, by context length, tool and kind of text.
    The better of the two lies in OUT/drafter, the report in OUT/report.md. Nothing leaves the machine.

    Example: dlite adapt traces.jsonl --drafter shipped --out runs/mine
    """
    from dlite.adapt.command import adapt_traces, summary
    from dlite.adapt.split import SplitSettings
    from dlite.api import load_target

    model = load_target(target, device=device, dtype=dtype)
    settings = SplitSettings(
        max_calls, held_out_calls, turns_per_trace, held_out_share, max_new_tokens, max_context, plain, seed
    )
    report = adapt_traces(
        model,
        traces,
        held_out or [],
        drafter,
        out,
        settings,
        recipe,
        set_ or (),
        batch=batch,
        include_loops=include_loops,
        argv=sys.argv,
    )
    print(summary(report, out))
