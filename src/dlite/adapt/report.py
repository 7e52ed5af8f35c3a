"""An adaptation's JSON, and the page that is made from it and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlite.adapt.compare import AFTER, BEFORE, Verdict
from dlite.adapt.learn import Learned
from dlite.adapt.split import Split
from dlite.audit.figures import figures, span_figures
from dlite.audit.marks import marks
from dlite.audit.replay import Replay
from dlite.bench.report import write_text
from dlite.bench.tables import interval, number
from dlite.config import Recipe
from dlite.errors import DataError
from dlite.provenance import provenance
from dlite.target.base import Target

Report = dict[str, Any]
FORMAT, VERSION = "dlite-adapt", 1
GROUPED = {"all": "all calls", "context": "by context length", "tool": "by tool", "turn": "by turn"}


def build(
    done: Replay,
    split: Split,
    learned: Learned,
    found: Verdict,
    recipe: Recipe,
    *,
    target: Target,
    drafter: str,
    include_loops: bool,
    seed: int,
    argv: Sequence[str],
) -> Report:
    """The report of a finished comparison. ``target`` is the one that replayed; ``drafter`` the name it was asked by."""
    ids = {turn.id: turn.ids for turn in done.turns}
    said = {(t.turn, t.arm): marks(t.generation, ids[t.turn], target.tokenizer, t.arm) for t in done.trials}
    spans = span_figures(done, said, include_loops=include_loops, seed=seed)
    training = json.loads((learned.folder / "training.json").read_text())
    report = {
        "format": FORMAT,
        "version": VERSION,
        "made": provenance(argv),
        "target": target.info.name,
        "drafter": {"given": drafter, "kind": done.arms[1].drafter.name, "K": done.arms[1].drafter.max_drafts},
        "kept": found.kept,
        "sentence": found.sentence,
        "gain": None if found.gain is None else asdict(found.gain),
        "lossless": {arm.name: done.lossless(arm.name) for arm in done.arms},
        "reading": {
            "sources": list(split.reading.sources),
            "layouts": dict(split.reading.layouts),
            "plain": split.reading.plain,
            "notes": list(split.reading.notes),
            "skipped": split.reading.skipped.to_json(),
        },
        "learned": {
            "calls": len(split.learn),
            "conversations": len({turn.trace for turn in split.learn}),
            "answers": learned.conversations,
            "tokens": learned.tokens,
            "anchors": learned.anchors,
            **{key: training[key] for key in ("steps", "anchor_views", "seconds", "final_loss")},
        },
        "held_out": {
            "calls": len(split.judge),
            "conversations": len({turn.trace for turn in split.judge}),
            "loops": len(done.looping),
            "loops_counted": include_loops,
            "max_new_tokens": done.settings.max_new_tokens,
        },
        "recipe": recipe.model_dump(mode="json"),
        "figures": [asdict(row) for row in figures(done, include_loops=include_loops, seed=seed)],
        "spans": [asdict(row) for row in spans],
    }
    return dict(json.loads(json.dumps(report)))


def write(report: Report, out: Path) -> None:
    """report.json and report.md; the JSON last, since it says that all is done."""
    write_text(markdown(report), out / "report.md")
    write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", out / "report.json")


def read(path: Path) -> Report:
    """A report written earlier. Errors: ``DataError``."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if (report["format"], report["version"]) != (FORMAT, VERSION):
            raise ValueError(f"its format is {report['format']!r}, version {report['version']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a report of dlite adapt ({error}). Delete it to measure again.") from None
    return dict(report)


def markdown(report: Report) -> str:
    """The page: what was kept and why, before beside after, and what it took."""
    learned, held, made = report["learned"], report["held_out"], report["made"]
    loops = "counted" if held["loops_counted"] else "left out"
    parts = [
        f"# dlite adapt: {report['drafter']['kind']} for {report['target']}",
        f"**{report['sentence']}** Kept: {report['kept']}. tau after minus before: {interval(report['gain'])} (95% bootstrap "
        "over calls, paired).",
        f"Judged on {held['calls']} calls of {held['conversations']} conversations that were never trained on, greedy, "
        f"{held['max_new_tokens']} new tokens, both drafters and plain decoding in turn; {held['loops']} calls that loop "
        f"{loops}. {_lossless(report)}",
        *(f"## Before and after, {title}\n\n{_grouped(report, by)}" for by, title in GROUPED.items()),
        f"## Accepted drafts by kind of text\n\n{_spans(report)}",
        f"## What it learned from\n\n{learned['calls']} calls of {learned['conversations']} conversations, "
        f"{learned['answers']} answers of {learned['tokens']} tokens by the target itself, {learned['anchors']} anchors seen "
        f"{learned['anchor_views']} times in {learned['steps']} steps, {learned['seconds'] / 60:.1f} minutes. "
        f"Sources: {', '.join(report['reading']['sources'])}.",
        *(f"- left out: {one['count']} {one['reason']}" for one in report["reading"]["skipped"]),
        *(f"- {note}" for note in report["reading"]["notes"]),
        f"`{' '.join(made['argv'])}` · {made['cpu']}, {made['threads']} thread(s), torch {made['torch']}, dlite "
        f"{made['dlite']}, commit {made['commit']}, {made['date'][:10]}",
    ]
    return "\n\n".join(parts) + "\n"


def _lossless(report: Report) -> str:
    bad = [name for name, passed in report["lossless"].items() if passed is False]
    return (
        f"**Not the target's own text: {', '.join(bad)}.**"
        if bad
        else "Every answer is plain decoding's, token for token."
    )


def _grouped(report: Report, by: str) -> str:
    rows = [row for row in report["figures"] if row["by"] == by]
    lines = []
    for name in dict.fromkeys(row["group"] for row in rows):
        old, new = (next(r for r in rows if (r["group"], r["arm"]) == (name, arm)) for arm in (BEFORE, AFTER))
        cells = [name, str(old["calls"]), interval(old["tau"]), interval(new["tau"])]
        lines.append([*cells, interval(old["speedup"], "x"), interval(new["speedup"], "x")])
    header = ["", "calls", "tau before", "tau after", "decode speed-up before", "after"]
    return _table(header, lines)


def _spans(report: Report) -> str:
    lines = []
    for name in dict.fromkeys(row["span"] for row in report["spans"]):
        both = {row["arm"]: row for row in report["spans"] if row["span"] == name}
        old, new = both.get(BEFORE), both.get(AFTER)
        share = number(100 * (new or old or {"share": 0.0})["share"], 1, "%")
        lines.append([name, share, *(interval(row["accepted"]) if row else "-" for row in (old, new))])
    return _table(["kind of text", "share of tokens", "accepted before", "accepted after"], lines)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
