"""From logs and names to an audit on disk: what ``dlite audit`` does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from dlite.audit.arms import make_arms, serving_flags
from dlite.audit.costs import measured_costs, priced_loads
from dlite.audit.memory import footprints
from dlite.audit.page import write_html
from dlite.audit.replay import Replay, ReplaySettings, replay
from dlite.audit.report import Judging, Reading, Report, is_report, read_json, replay_report, server_report, write_json
from dlite.audit.server import read_server_log
from dlite.audit.turns import Choice, Turn, choose_turns
from dlite.errors import ConfigError, DataError
from dlite.progress import counting_bar
from dlite.target.base import Target
from dlite.traces.read import read_traces
from dlite.traces.render import mismatches, renderer
from dlite.traces.sample import sample
from dlite.traces.skipped import Skipped
from dlite.traces.trace import Trace


@dataclass(frozen=True)
class AuditSettings:
    """What to replay and what to assume: ``concurrency`` is how many requests at a time memory is counted and
    rounds are priced for, at most.
    """

    max_calls: int = 40
    turns_per_trace: int = 4
    min_context: int = 0
    max_context: int | None = None
    plain: bool = False
    concurrency: int = 16


def audit_traces(
    target: Target,
    sources: Sequence[str],
    drafters: Sequence[str],
    Ks: Sequence[int],
    out: Path,
    settings: AuditSettings,
    replaying: ReplaySettings,
    judging: Judging,
) -> Report:
    """Replay turns of the sources and write report.json and report.html into ``out``. Errors: ``DliteError``."""
    if settings.concurrency < 1:
        raise ConfigError(f"the concurrency is {settings.concurrency}. Expected 1 or more. Raise it.")
    if replaying.max_new_tokens < 2:
        raise ConfigError(
            f"max_new_tokens is {replaying.max_new_tokens}. Expected 2 or more: the first token comes with the prefill. Raise it."
        )
    check_out(out)
    turns, reading = _read(target, sources, settings, replaying, judging.seed)
    arms, given = make_arms(target, drafters, Ks)
    with counting_bar("turns", len(turns)) as advance:
        measured = replay(target, arms, turns, replaying, advance)
    if not measured.turns:
        raise DataError("the audit was interrupted before a turn was measured. Expected at least one. Run it again.")
    costs = []
    if len(arms) > 1 and not measured.interrupted:
        loads = priced_loads(target, measured.turns, settings.concurrency)
        with counting_bar("round costs", len(loads)) as advance:
            costs = measured_costs(target, arms, loads, advance)
    flags = {arm.name: serving_flags(target, arm, given[arm.name]) for arm in arms[1:]}
    memory = footprints(target, arms, _lengths(measured), settings.concurrency)
    judging = Judging(judging.include_loops, judging.redact, judging.seed, judging.argv, flags)
    return _written(replay_report(target, reading, measured, costs, memory, judging), out)


def audit_server(path: Path, out: Path, judging: Judging) -> Report:
    """Judge a server's own counts and write report.json and report.html into ``out``. Errors: ``DliteError``."""
    check_out(out)
    skipped = Skipped()
    counts = read_server_log(path, skipped)
    return _written(server_report(str(path), counts, skipped, judging), out)


def check_out(out: Path) -> None:
    """Before anything is measured. Errors: ``ConfigError`` where the report cannot be written, or where that of something
    else would be lost; an earlier audit is written over.
    """
    holder = next(place for place in (out, *out.parents) if place.exists())
    if not (holder.is_dir() and os.access(holder, os.W_OK)):
        why = "may not be written" if holder.is_dir() else "is a file"
        raise ConfigError(f"--out {out}: {holder} {why}. Expected a folder for the report. Name another.")
    if (out / "report.json").exists() and not is_report(out / "report.json"):
        raise ConfigError(
            f"--out {out} holds the report of something else, which would be lost. Expected a new folder or that of an earlier "
            "audit. Name another."
        )


def summary(report: Report, out: Path) -> str:
    """A few lines for the terminal."""
    lines = [report["advice"]["headline"], *report["advice"]["sentences"]]
    lines += [f"{where}: {words}" for where, words in report["advice"]["flags"]]
    lines += [f"note: {line}" for line in report["warnings"]]
    left_out = sum(one["count"] for one in report["reading"]["skipped"])
    if left_out:
        lines.append(f"left out: {left_out:,}, by reason in the report")
    return "\n".join([*lines, "", f"report: {(out / 'report.html').resolve()}"])


def tie_gap(target: Target) -> float:
    """How near a near-tie is: rounding of fp32, or a few steps of a 16-bit logit."""
    return 1e-4 if target.dtype == torch.float32 else 0.5


def _read(
    target: Target, sources: Sequence[str], settings: AuditSettings, replaying: ReplaySettings, seed: int
) -> tuple[list[Turn], Reading]:
    rendering = renderer(target.tokenizer, plain=settings.plain)
    room = target.info.context_length - replaying.max_new_tokens
    limit = room if settings.max_context is None else min(room, settings.max_context)
    choice = Choice(settings.max_calls, settings.turns_per_trace, settings.min_context, limit)
    skipped, layouts = Skipped(), Counter[str]()
    traces = sample(_counted(sources, skipped, layouts), settings.max_calls, seed)
    turns = choose_turns(traces, rendering, choice, skipped)
    if not turns:
        why = skipped.sentence() or "there are none"
        raise DataError(
            f"no turn of {', '.join(sources)} can be replayed: {why}. Expected a log of conversations, with at least one turn "
            f"behind {choice.min_context} to {limit} tokens. docs/audit.md has the layouts."
        )
    used = {turn.trace for turn in turns}
    notes = mismatches(rendering, [trace for trace in traces if trace.id in used])
    names = tuple(source if source.startswith("bfcl:") else Path(source).name for source in sources)
    return turns, Reading(names, dict(layouts), skipped, tuple(notes), settings.plain)


def _counted(sources: Sequence[str], skipped: Skipped, layouts: Counter[str]) -> Iterator[Trace]:
    for source in sources:
        for trace in read_traces(source, skipped):
            layouts[trace.layout] += 1
            yield trace


def _lengths(measured: Replay) -> list[int]:
    """The shortest, the middle and the longest context an answer ends in."""
    lengths = sorted(len(turn.ids) + measured.settings.max_new_tokens for turn in measured.turns)
    return sorted({lengths[0], round(median(lengths)), lengths[-1]})


def _written(report: Report, out: Path) -> Report:
    write_json(report, out / "report.json")
    report = read_json(out / "report.json")
    write_html(report, out / "report.html")
    return report
