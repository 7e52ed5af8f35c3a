"""``dlite serve``, and ``dlite bench --server``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dlite.errors import ConfigError


def serve(
    engine_options: Annotated[
        list[str] | None, typer.Argument(help="Options for the engine itself, behind --.", show_default=False)
    ] = None,
    target: Annotated[
        str, typer.Option(help="Hub id, folder, .gguf file, or built-in name (smollm2-135m).")
    ] = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option(help="ngram, suffix or none; trained drafters need a plug-in that does not exist yet.")
    ] = "ngram",
    engine: Annotated[str, typer.Option(help="vllm, sglang, or auto: the first that is installed.")] = "auto",
    k: Annotated[int | None, typer.Option("--k", "-K", help="Drafts a round; 7 by default.")] = None,
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

    Example: dlite serve --target Qwen/Qwen3-4B --drafter ngram -- --gpu-memory-utilization 0.9
    """
    from dlite.serve.command import Wanted, command_line, shown

    extra = tuple(engine_options or ())
    command = command_line(Wanted(target, drafter, engine, k, max_context, host, port, extra))
    print(shown(command), flush=True)
    if not dry_run:
        os.execv(command[0], command)


def bench_at(
    server: str | None,
    context: typer.Context,
    workload: Sequence[str],
    out: Path,
    concurrency: Sequence[int],
    sizes: tuple[int | None, int | None, int | None, int | None],
    temperature: float,
    seed: int,
    local: Mapping[str, Any],
) -> None:
    """Load a server; ``local`` are options that only a bench without one has, and what was given for them."""
    from dlite.bench.workloads import Asked
    from dlite.serve.load import LoadSettings
    from dlite.serve.load_command import bench_server, refuse_local

    if server is None:
        raise ConfigError("--concurrency would be ignored: it is for a server. Give --server URL, or leave it out.")
    refuse_local([name for name, value in local.items() if value])
    source = context.get_parameter_source("target")
    target = context.params["target"] if source is not None and source.name != "DEFAULT" else None
    settings = LoadSettings(temperature, seed)
    try:
        good = bench_server(
            server, target, workload, out, levels=concurrency, asked=Asked(*sizes), settings=settings, argv=sys.argv
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if good else 1)
