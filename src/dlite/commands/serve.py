"""``dlite serve``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from dlite.commands import options


def serve(
    engine_options: Annotated[
        list[str] | None, typer.Argument(help="Options for the engine itself, behind --.", show_default=False)
    ] = None,
    target: options.Target = "smollm2-135m",
    drafter: Annotated[str, typer.Option(help="A DLite's folder, shipped, ngram, suffix or none.")] = "ngram",
    engine: Annotated[str, typer.Option(help="vllm, sglang, or auto: the first that is installed.")] = "auto",
    k: Annotated[
        int | None, typer.Option("--k", "-K", help="Drafts a round; as many as it was trained for, or 7.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(help="Longest request in tokens; by default the target's own.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8000,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the engine's command line and stop.")] = False,
) -> None:
    """Serve a target with a drafter through vLLM or SGLang: checks first, then prints the engine's command and runs it.

    The engine must be installed beside dlite, in a version that dlite knows: vLLM 0.32 or 0.33, SGLang 0.5.23. It answers
    with the OpenAI API under /v1.

    Example: dlite serve --target Qwen/Qwen3-4B --drafter runs/qwen3-4b/drafter -- --gpu-memory-utilization 0.9
    """
    from dlite.serve.command import Wanted, command_line, shown

    extra = tuple(engine_options or ())
    command = command_line(Wanted(target, drafter, engine, k, max_context, host, port, extra))
    print(shown(command), flush=True)
    if not dry_run:
        os.execv(command[0], command)
