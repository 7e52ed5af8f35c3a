"""The study's JSON as a page: its tables, each beside the published figures that belong to it."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from dlite.bench.figures import BUCKETS
from dlite.bench.tables import interval, number
from dlite.errors import DataError

Study = dict[str, Any]


def read_study(path: str | Path) -> Study:
    """A study's JSON. Errors: ``DataError``."""
    try:
        record = json.loads(Path(path).read_text())
        if record["format"] != "dlite-study":
            raise ValueError(f"its format is {record['format']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a study ({error}). Expected the study.json that dlite study wrote.") from None
    return dict(record)


def markdown(study: Study) -> str:
    """The whole page."""
    plan, made = study["plan"], study["made"]
    anchors = plan["steps"] * plan["batch_blocks"]
    parts = [
        "# Results of the study",
        f"Made from its JSON by `dlite study --render`; do not edit. Target {study['target']['name']}, {made['cpu']}, "
        f"{made['threads']} thread(s), torch {made['torch']}, commit {made['commit']}, {made['date'][:10]}, seed "
        f"{plan['seed']}. Every trained arm saw the same {study['conversations']} conversations "
        f"({study['training_tokens']} answer tokens) for {plan['steps']} steps of {plan['batch_blocks']} anchors "
        f"({anchors} anchor views). Greedy, {plan['calls']} calls a workload, {plan['max_new_tokens']} new tokens, loops "
        "left out, all arms in turn on each call. tau counts the bonus token; intervals are 95% bootstrap over calls. At "
        "this size differences below about 0.1 are noise.",
        _lossless(study),
    ]
    published = json.loads((files("dlite") / "study" / "published.json").read_text())
    for table in plan["tables"]:
        shown = [name for name in table["arms"] if any(arm["name"] == name for arm in study["arms"])]
        if not shown:
            continue
        parts += [f"## {table['title']}", table["question"], _at_anchors(study, shown)]
        if study["figures"]:
            parts.append(_by_workload(study, shown))
        if study["figures"] and table["by_context"]:
            parts.append(_by_context(study, shown))
        if table["published"]:
            parts.append(_published(published[table["published"]]))
    return "\n\n".join([*parts, "## What each arm cost", _costs(study)]) + "\n"


def _lossless(study: Study) -> str:
    if not study["lossless"]:
        return "No workload was decoded."
    bad = [name for name, passed in study["lossless"].items() if name != "plain" and passed is not True]
    if bad:
        return f"**Not lossless: {', '.join(bad)}.** Their speed-ups are not shown."
    return f"Every one of the {len(study['lossless']) - 1} arms gave plain decoding's tokens on every call."


def _at_anchors(study: Study, arms: list[str]) -> str:
    found = {arm["name"]: arm["fixed"] for arm in study["arms"] if arm["fixed"] and arm["name"] in arms}
    if not found:
        return ""
    one = next(iter(found.values()))
    first = next(arm["name"] for arm in study["arms"] if arm["fixed"])
    header = ["arm", "tokens a draft", f"more than {first}", "accepted at 1", "2", "3", "4"]
    rows = [
        [name, interval(row["tau"]), interval(row["longer"]), *(f"{x:.2f}" for x in row["acceptance_by_position"][:4])]
        for name, row in found.items()
    ]
    note = f"At {one['anchors']} held-out anchors of {one['conversations']} conversations, the same for all, one draft each:"
    return f"{note}\n\n{_table(header, rows)}"


def _by_workload(study: Study, arms: list[str]) -> str:
    workloads = list(dict.fromkeys(row["workload"] for row in study["figures"]))
    header = ["arm", *(f"{name}: tau" for name in workloads), "mean tau", "mean decode speed-up"]
    rows = []
    for arm in arms:
        found = [_row(study, arm, name, "all") for name in workloads]
        taus = [row["tau"]["value"] for row in found if row and row["tau"]]
        gains = [row["speedup"]["value"] for row in found if row and row["speedup"]]
        cells = [interval(row["tau"]) if row else "-" for row in found]
        rows.append([arm, *cells, number(_mean(taus)), number(_mean(gains), unit="x")])
    return _table(header, rows)


def _by_context(study: Study, arms: list[str]) -> str:
    names = [name for name, _ in BUCKETS if any(row["context"] == name for row in study["figures"])]
    header = ["arm", *(f"{name} tokens: tau" for name in names)]
    return _table(header, [[arm, *(_pooled(study, arm, name) for name in names)] for arm in arms])


def _pooled(study: Study, arm: str, context: str) -> str:
    rows = [row for row in study["figures"] if row["arm"] == arm and row["context"] == context]
    rounds, calls = sum(row["rounds"] for row in rows), sum(row["calls"] for row in rows)
    return f"{sum(row['tokens'] for row in rows) / rounds:.2f} ({calls} calls)" if rounds else "-"


def _costs(study: Study) -> str:
    header = ["arm", "drafter", "parameters", "stages (steps)", "training", "state at 1K", "state at 8K", "draft ms"]
    rows = []
    for arm in study["arms"]:
        drafts = [row["draft_ms"] for row in study["figures"] if row["arm"] == arm["name"] and row["draft_ms"]]
        stages = ", ".join(f"{name} {steps}" for name, steps in arm.get("stages", [])) or "-"
        size = f"{arm['parameters'] / 1e6:.1f}M" if arm.get("parameters") else "-"
        spent = f"{arm['seconds'] / 60:.1f} min" if "seconds" in arm else "-"
        state = [f"{arm['state_bytes'][c] / 1024:.0f} KiB" for c in ("1024", "8192")]
        rows.append([arm["name"], arm["drafter"], size, stages, spent, *state, number(_mean(drafts), 1)])
    return _table(header, rows)


def _published(entry: dict[str, Any]) -> str:
    return f"*Published, not ours* ({entry['source']}; {entry['conditions']}):\n\n" + _table(
        entry["header"], entry["rows"]
    )


def _row(study: Study, arm: str, workload: str, context: str) -> dict[str, Any] | None:
    wanted = (arm, workload, context)
    return next((r for r in study["figures"] if (r["arm"], r["workload"], r["context"]) == wanted), None)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in [header, ["---"] * len(header), *rows])
