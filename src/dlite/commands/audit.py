"""``dlite audit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dlite.commands import options
from dlite.errors import ConfigError


def audit(
    out: Annotated[Path, typer.Option(help="Folder for report.json and report.html.")],
    traces: Annotated[
        list[str] | None,
        typer.Argument(help="Logs of conversations: files, folders, archives, or bfcl:multi_turn_base and its kin."),
    ] = None,
    target: options.Target = "smollm2-135m",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="'shipped', a drafter folder, a name from dlite drafters, with +adaptive behind it or not, or 'none' for plain "
            "decoding only; may be given more than once. By default the shipped one, or ngram and suffix where none ships."
        ),
    ] = None,
    k: options.DraftCounts = None,
    max_calls: Annotated[int, typer.Option(help="Turns to replay.")] = 40,
    turns_per_trace: options.TurnsPerTrace = 4,
    max_new_tokens: options.LongestAnswer = 128,
    min_context: Annotated[int, typer.Option(help="Leave out turns behind fewer tokens than this.")] = 0,
    max_context: options.LongestHistory = None,
    reuse: Annotated[
        str, typer.Option(help="Prefix reuse from the turn before: both, on, or off. Both shows what it saves.")
    ] = "both",
    concurrency: Annotated[
        int, typer.Option(help="Requests at a time that memory is counted for, and rounds are timed with, at most.")
    ] = 16,
    plain: options.Plain = False,
    server_log: Annotated[
        Path | None,
        typer.Option(help="Judge a server's own counts of accepted drafts instead: JSON lines or vLLM's /metrics."),
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave all contents out of the report: texts, token ids, names of tools.")
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy: only then is every answer compared token for token.")
    ] = 0.0,
    include_loops: Annotated[
        bool, typer.Option("--include-loops", help="Count answers that repeat themselves.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which conversations are drawn, bootstrap, and sampling.")] = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
) -> None:
    """Replay your own conversations turn by turn and find out where speculation pays: one page, one JSON.

    Acceptance by context length, turn, kind of text and tool; who gave each token; where the time goes; break-even by
    length and by requests at a time; what to set. Nothing leaves the machine. Ctrl-C writes what was measured by then.

    Example: dlite audit traces.jsonl --drafter shipped --max-calls 40 --out out/audit
    """
    if bool(traces) == (server_log is not None):
        raise ConfigError("give either TRACES or --server-log. See: dlite audit --help")
    if reuse not in ("both", "on", "off"):
        raise ConfigError(f"--reuse is {reuse!r}. Expected both, on or off. Choose one of these.")
    from dlite.audit.command import AuditSettings, audit_server, audit_traces, summary, tie_gap
    from dlite.audit.report import Judging

    judging = Judging(include_loops, redact, seed, tuple(sys.argv))
    if server_log is not None:
        print(summary(audit_server(server_log, out, judging), out))
        return
    from dlite.api import load_target
    from dlite.audit.arms import default_drafters
    from dlite.audit.replay import ReplaySettings
    from dlite.sampling import SamplingParams

    sampling = SamplingParams(temperature=temperature, seed=seed)
    model = load_target(target, device=device, dtype=dtype)
    report = audit_traces(
        model,
        traces or [],
        drafter or default_drafters(model),
        k or [],
        out,
        AuditSettings(max_calls, turns_per_trace, min_context, max_context, plain, concurrency),
        ReplaySettings(max_new_tokens, reuse, sampling, tie_gap(model)),  # type: ignore[arg-type]
        judging,
    )
    print(summary(report, out))
    raise typer.Exit(1 if any(arm["lossless"] is False for arm in report["arms"]) else 0)
