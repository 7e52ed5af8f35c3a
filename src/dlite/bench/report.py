"""The report is one JSON file; every table, page and picture is made from it and from nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlite.bench.figures import figures
from dlite.bench.run import PLAIN, BenchResult, Trial
from dlite.errors import DataError
from dlite.provenance import provenance
from dlite.types import drafts_per_round

Report = dict[str, Any]
FORMAT, VERSION = "dlite-bench", 1


def build(result: BenchResult, *, argv: Sequence[str], conditions: Mapping[str, str] | None = None) -> Report:
    """The report of a run. ``conditions`` are further facts worth a line each, such as the drafter or the dtype."""
    settings = asdict(result.settings)
    settings["sampling"]["logit_bias"] = {str(k): v for k, v in result.settings.sampling.logit_bias.items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "made": provenance(argv),
        "conditions": dict(conditions or {}),
        "target": {**asdict(result.target), "stop_ids": sorted(result.target.stop_ids)},
        "settings": settings,
        "arms": [_arm(result, index) for index in range(len(result.arms))],
        "skipped": [{"call": call, "reason": reason} for call, reason in result.skipped],
        "figures": json.loads(json.dumps([asdict(row) for row in figures(result)])),
        "trials": [_trial(trial) for trial in result.trials],
    }


def write_json(report: Report, path: str | Path) -> None:
    """Write the report; the file appears whole or not at all. One trial a line."""
    head = json.dumps({k: v for k, v in report.items() if k != "trials"}, indent=1, allow_nan=False)
    trials = ",\n".join(json.dumps(trial, allow_nan=False) for trial in report["trials"])
    write_text(f'{head[:-2]},\n "trials": [\n{trials}\n ]\n}}\n', path)


def read_json(path: str | Path) -> Report:
    """A report written earlier. Errors: ``DataError``."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}. Expected a report that dlite bench wrote. Check the path.") from None
    found = (report.get("format"), report.get("version")) if isinstance(report, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise DataError(
            f"{path} has format {found[0]!r}, version {found[1]!r}. Expected {FORMAT!r}, version {VERSION}. "
            "Run dlite bench again to make one."
        )
    return dict(report)


def write_text(text: str, path: str | Path) -> None:
    """Write a text file in one step, making its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _arm(result: BenchResult, index: int) -> dict[str, Any]:
    arm = result.arms[index]
    made = [check for check in result.checks if check.arm == arm.name]
    lengths = (t.generation.prompt_tokens + len(t.generation.token_ids) for t in result.trials)
    longest = max(lengths, default=0)
    rounds = [r for t in result.trials if t.arm == arm.name for r in t.generation.rounds]
    return {
        "name": arm.name,
        "drafter": arm.drafter.name,
        "K": arm.drafter.max_drafts if arm.K is None else arm.K,
        "adaptive": arm.control is not None,
        "drafts_per_round": round(drafts_per_round(rounds), 4),
        "share_of_rounds_off": round(sum(r.off for r in rounds) / max(1, len(rounds)), 4),
        "state_bytes": arm.drafter.state_bytes(longest),
        "lossless": result.lossless(arm.name),
        "checked_calls": len(made),
        "near_ties": sum(check.difference is not None and check.passed for check in made),
        "differences": [{"call": c.call, **asdict(c.difference)} for c in made if c.difference is not None],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    one = trial.generation
    seconds = {name: round(value, 6) for name, value in asdict(one.seconds).items()}
    return {
        "call": trial.call,
        "workload": trial.workload,
        "arm": trial.arm,
        "prompt_tokens": one.prompt_tokens,
        "finish": one.finish,
        "looping": trial.looping,
        "seconds": seconds,
        "ids": list(one.token_ids),
        # proposed, accepted, committed, context; milliseconds of draft, verify and other
        "rounds": [
            [r.proposed, r.accepted, r.committed, r.context]
            + [round(1e3 * s, 3) for s in (r.seconds_draft, r.seconds_verify, r.seconds_other)]
            for r in one.rounds
        ],
    }


def overall(report: Report) -> str:
    """The workload whose rows cover every call."""
    return str(report["figures"][-1]["workload"])


def rows_of(report: Report, *, workload: str | None = None, context: str = "all") -> list[dict[str, Any]]:
    """Rows of the figures: of one workload (None: of each) and one span of context lengths."""
    return [r for r in report["figures"] if r["context"] == context and workload in (None, r["workload"])]


def reason_not_shown(report: Report, arm: str) -> str | None:
    """Why an arm has no speed-up, or None where it has one to show."""
    lossless = next(a["lossless"] for a in report["arms"] if a["name"] == arm)
    if lossless is None:
        return "not shown: no losslessness check was made"
    return None if lossless or arm == PLAIN else "not shown: losslessness check failed"
