"""The audit's JSON: everything the page shows is made from it and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dlite.audit.advice import advice, warnings
from dlite.audit.breakeven import break_even
from dlite.audit.costs import Cost
from dlite.audit.figures import figures, source_figures, span_figures, total
from dlite.audit.marks import Mark, marks, runs
from dlite.audit.memory import Footprint
from dlite.audit.redact import redacted
from dlite.audit.replay import Replay, Trial
from dlite.audit.samples import samples
from dlite.audit.server import SERVER, Count, server_figures
from dlite.bench.report import write_text
from dlite.errors import DataError
from dlite.provenance import provenance
from dlite.target.base import Target
from dlite.traces.skipped import Skipped
from dlite.types import tau

Report = dict[str, Any]
FORMAT, VERSION = "dlite-audit", 2


@dataclass(frozen=True)
class Reading:
    """Where the turns came from: conversations read by layout, and what the template could not say."""

    sources: tuple[str, ...]
    layouts: Mapping[str, int]
    skipped: Skipped
    notes: tuple[str, ...] = ()
    plain: bool = False


@dataclass(frozen=True)
class Judging:
    """How the figures are made and shown. ``flags``: what selects each arm in dlite and elsewhere, by arm."""

    include_loops: bool = False
    redact: bool = False
    seed: int = 0
    argv: tuple[str, ...] = ()
    flags: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)


def replay_report(
    target: Target,
    reading: Reading,
    replay: Replay,
    costs: Sequence[Cost],
    memory: Sequence[Footprint],
    judging: Judging,
) -> Report:
    """The report of a replay."""
    ids = {turn.id: turn.ids for turn in replay.turns}
    main = [t for t in replay.trials if t.reuse == replay.settings.main]
    names = {arm.name: arm.drafter.name for arm in replay.arms}
    found = {(t.turn, t.arm): marks(t.generation, ids[t.turn], target.tokenizer, names[t.arm]) for t in main}
    givers = source_figures(replay, found, include_loops=judging.include_loops)
    options = {"include_loops": judging.include_loops, "seed": judging.seed}
    rows = figures(replay, **options)  # type: ignore[arg-type]
    spans = span_figures(replay, found, **options)  # type: ignore[arg-type]
    report = _head("replay", reading, judging) | {
        "target": {**asdict(target.info), "stop_ids": sorted(target.info.stop_ids), "dtype": str(target.dtype)[6:]},
        "settings": _settings(replay, judging),
        "interrupted": replay.interrupted,
        "answers": _answers(replay),
        "arms": [_arm(replay, name) for name in (arm.name for arm in replay.arms)],
        "figures": _plain([asdict(row) for row in rows]),
        "spans": _plain([asdict(row) for row in spans]),
        "sources": _plain([asdict(row) for row in givers]),
        "reuse": _reuse(replay),
        "costs": [asdict(cost) for cost in costs],
        "break_even": _plain(
            [asdict(one) for one in break_even(replay, costs, rows, include_loops=judging.include_loops)]
        ),
        "memory": [asdict(one) for one in memory],
        "samples": samples(replay, found, include_loops=judging.include_loops),
        "turns": [_turn(turn, turn.id in replay.looping) for turn in replay.turns],
        "trials": [_trial(t, found[t.turn, t.arm] if t.reuse == replay.settings.main else None) for t in replay.trials],
    }
    return _finished(report, judging)


def server_report(path: str, counts: Sequence[Count], skipped: Skipped, judging: Judging) -> Report:
    """The report of a server's own counts: acceptance, and what a round may cost."""
    report = _head("server", Reading((Path(path).name,), {}, skipped), judging) | {
        "arms": [{"name": SERVER, "drafter": SERVER, "K": None, "lossless": None}],
        "figures": _plain([asdict(row) for row in server_figures(list(counts), seed=judging.seed)]),
        "interrupted": False,
    }
    empty: Report = {
        key: [] for key in ("spans", "sources", "reuse", "costs", "break_even", "memory", "samples", "turns", "trials")
    }
    return _finished({**empty, **report, "target": None, "settings": {"seed": judging.seed}, "answers": None}, judging)


def write_json(report: Report, path: str | Path) -> None:
    """Write the report; the file appears whole or not at all. One turn and one trial a line."""
    long = ("turns", "trials", "samples")
    head = json.dumps({k: v for k, v in report.items() if k not in long}, indent=1, allow_nan=False)
    lists = [
        f' "{key}": [\n' + ",\n".join(json.dumps(x, allow_nan=False) for x in report[key]) + "\n ]" for key in long
    ]
    write_text(f"{head[:-2]},\n" + ",\n".join(lists) + "\n}\n", path)


def is_report(path: str | Path) -> bool:
    """Whether a file begins as an audit's report does, of whatever version."""
    with Path(path).open("rb") as file:
        return f'"format": "{FORMAT}"'.encode() in file.read(200)


def read_json(path: str | Path) -> Report:
    """A report written earlier. Errors: ``DataError``."""
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}. Expected a report that dlite audit wrote. Check the path.") from None
    found = (report.get("format"), report.get("version")) if isinstance(report, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise DataError(
            f"{path} has format {found[0]!r}, version {found[1]!r}. Expected {FORMAT!r}, version {VERSION}. "
            "Run dlite audit again to make one."
        )
    return dict(report)


def _head(source: str, reading: Reading, judging: Judging) -> Report:
    return {
        "format": FORMAT,
        "version": VERSION,
        "source": source,
        "made": provenance(judging.argv),
        "redacted": False,
        "reading": {
            "sources": list(reading.sources),
            "layouts": dict(reading.layouts),
            "plain": reading.plain,
            "notes": list(reading.notes),
            "skipped": reading.skipped.to_json(),
        },
    }


def _finished(report: Report, judging: Judging) -> Report:
    report = redacted(report) if judging.redact else report
    report = {**report, "warnings": warnings(report)}
    return {**report, "advice": advice(report, judging.flags)}


def _plain(value: Any) -> Any:
    """Tuples become lists, as they will when the file is read."""
    return json.loads(json.dumps(value))


def _settings(replay: Replay, judging: Judging) -> dict[str, Any]:
    settings = asdict(replay.settings)
    settings["sampling"]["logit_bias"] = {str(k): v for k, v in replay.settings.sampling.logit_bias.items()}
    return settings | {"include_loops": judging.include_loops, "seed": judging.seed}


def _arm(replay: Replay, name: str) -> dict[str, Any]:
    arm = next(one for one in replay.arms if one.name == name)
    made = [check for check in replay.checks if check.arm == name]
    return {
        "name": name,
        "drafter": arm.drafter.name,
        "K": arm.drafter.max_drafts if arm.K is None else arm.K,
        "lossless": replay.lossless(name),
        "checks": len(made),
        "near_ties": sum(check.difference is not None and check.passed for check in made),
        "differences": [{"turn": c.call, **asdict(c.difference)} for c in made if c.difference is not None],
        "tau_with_loops": tau(r for t in replay.trials if t.arm == name for r in t.generation.rounds),
    }


def _answers(replay: Replay) -> dict[str, Any]:
    """How the plain answers ended, beside the log's."""
    plain = [t.generation for t in replay.trials if (t.arm, t.reuse) == (replay.arms[0].name, replay.settings.main)]
    logged = [turn.logged for turn in replay.turns if turn.logged]
    return {
        "calls": len(plain),
        "loops": len(replay.looping),
        "cut_by_limit": sum(one.finish == "length" for one in plain),
        "cut_by_context": sum(one.finish == "context" for one in plain),
        "prompts_cut": sum(turn.cut for turn in replay.turns),
        "median_tokens": median(len(one.token_ids) for one in plain),
        "median_logged_tokens": median(logged) if logged else None,
    }


def _reuse(replay: Replay) -> list[dict[str, Any]]:
    """Each arm with prefix reuse on and off: what was computed and how long that took, over all turns."""
    rows = []
    for arm in replay.arms:
        for reuse in ("on", "off"):
            mine = [t for t in replay.trials if (t.arm, t.reuse) == (arm.name, reuse)]
            if mine:
                rows.append({
                    "arm": arm.name,
                    "reuse": reuse,
                    "calls": len(mine),
                    "prompt_tokens": sum(t.generation.prompt_tokens for t in mine),
                    "reused_tokens": sum(t.reused for t in mine),
                    "seconds": asdict(total([t.generation.seconds for t in mine])),
                })  # fmt: skip
    return rows


def _turn(turn: Any, looping: bool) -> dict[str, Any]:
    kept = ("id", "trace", "layout", "number", "tool", "logged", "cut")
    return {key: getattr(turn, key) for key in kept} | {"context": len(turn.ids), "looping": looping}


def _trial(trial: Trial, found: Sequence[Mark] | None) -> dict[str, Any]:
    one = trial.generation
    record = {
        "turn": trial.turn,
        "arm": trial.arm,
        "reuse": trial.reuse,
        "reused": trial.reused,
        "finish": one.finish,
        "context": one.prompt_tokens,
        "tokens": len(one.token_ids),
        "tau": one.tau,
        "seconds": {name: round(value, 6) for name, value in asdict(one.seconds).items()},
        # proposed, accepted, committed, context; milliseconds of draft, verify and other
        "rounds": [
            [r.proposed, r.accepted, r.committed, r.context]
            + [round(1e3 * s, 3) for s in (r.seconds_draft, r.seconds_verify, r.seconds_other)]
            for r in one.rounds
        ],
    }
    if found is None:
        return record
    tokens = {
        "ids": list(one.token_ids),
        "sources": runs([m.source for m in found]),
        "positions": [m.position for m in found],
        "spans": runs([m.span for m in found]),
        "copied": runs([m.copied for m in found]),
    }
    return record | tokens
