"""``dlite bench``, here or at a server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dlite.commands import options
from dlite.errors import ConfigError


def bench(
    context: typer.Context,
    workload: Annotated[
        list[str],
        typer.Option(help="A JSONL file, NAME=FILE, or a name from dlite workloads; may be given more than once."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.json, report.md and report.html.")],
    target: options.Target = "smollm2-135m",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="'shipped', a drafter folder, or a name from dlite drafters; with +adaptive behind it, with as many drafts "
            "as pay. May be given more than once."
        ),
    ] = None,
    k: options.DraftCounts = None,
    calls: Annotated[
        int | None, typer.Option(help="Calls drawn from each workload; by default what its name says, or 20.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer; by default what the workload's name says, or 128.")
    ] = None,
    min_context: Annotated[
        int | None,
        typer.Option(help="Leave out prompts shorter than this; by default what the workload's name says, or 0."),
    ] = None,
    max_context: options.LongestPrompt = None,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy: only then are texts compared token for token.")
    ] = 0.0,
    include_loops: Annotated[
        bool, typer.Option("--include-loops", help="Keep calls whose plain answer loops.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which calls are drawn, bootstrap, and sampling.")] = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    server: Annotated[
        str | None,
        typer.Option(help="Load an OpenAI-compatible server at this URL instead: throughput and waiting times."),
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests in flight at the server; by default 1, 2, 4, ... 64.")
    ] = None,
) -> None:
    """Measure drafters beside plain decoding on your own prompts: tau, round cost, speed-up, time per call.

    A workload that dlite workloads names keeps its published rules, also when it is read from a file of yours (NAME=FILE),
    where no option says otherwise. Arms are alternated call by call. No speed-up is shown for a drafter whose text differs
    from plain decoding's. After Ctrl-C the report holds the calls measured so far.

    With --server the same prompts are sent to a running server, so many at a time: tokens a second of all requests
    together, seconds to the first token, milliseconds a token, and what the server says of its drafts.

    Example: dlite bench --workload gsm8k.jsonl --drafter shipped -K 3 -K 7 --out out/
    """
    if server is not None or concurrency:
        local = {"--drafter": drafter, "-K": k, "--include-loops": include_loops}
        local |= {"--device": device != "cpu", "--dtype": dtype != "float32"}
        sizes = (calls, max_new_tokens, min_context, max_context)
        _bench_at(server, context, workload, out, concurrency or (), sizes, temperature, seed, local)
    from dlite.api import load_target
    from dlite.bench.command import bench_files
    from dlite.sampling import SamplingParams

    model = load_target(target, device=device, dtype=dtype)
    try:
        same = bench_files(
            model,
            workload,
            drafter or ["shipped"],
            k or [],
            out,
            calls=calls,
            max_new_tokens=max_new_tokens,
            min_context=min_context,
            max_context=max_context,
            sampling=SamplingParams(temperature=temperature, seed=seed),
            include_loops=include_loops,
            seed=seed,
            argv=sys.argv,
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if same else 1)


def _bench_at(
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
