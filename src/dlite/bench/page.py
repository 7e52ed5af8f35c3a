"""A report as one self-contained page: no scripts, no fonts or files from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlite.bench.plots import arm_colors, pictures
from dlite.bench.report import Report, overall, reason_not_shown, rows_of, write_text
from dlite.bench.tables import CONTEXT_HEADER, HEADER, cells, check_lines, context_rows, interval, number, plural

TEMPLATE = Path(__file__).with_name("report.html.jinja")


def html(report: Report) -> str:
    """The page, from the report alone."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        report=report,
        cards=_cards(report),
        columns=_columns(len(report["arms"]) - 1),
        headline=headline(report),
        pictures=pictures(report),
        colors=arm_colors(report),
        hidden={arm["name"]: reason_not_shown(report, arm["name"]) for arm in report["arms"]},
        header=HEADER,
        groups=_groups(report),
        context_header=CONTEXT_HEADER,
        context_rows=context_rows(report),
        checks=check_lines(report),
        facts=_facts(report),
        how=_how(report),
    )


def write_html(report: Report, path: str | Path) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(html(report), path)


def headline(report: Report) -> str:
    """The one sentence to take away, with its conditions."""
    rows = [row for row in rows_of(report, workload=overall(report))[1:] if row["speedup"]]
    if not rows:
        return "No speed-up is shown: no arm passed the losslessness check with anything to measure."
    best = max(rows, key=lambda row: row["speedup"]["value"])
    pace, low, high = (best["speedup"][name] for name in ("value", "low", "high"))
    length = f"committing {number(best['tau']['value'])} tokens a round"
    if low is not None and low <= 1 <= high:
        return f"{best['arm']}, the best arm, is within error of plain decoding at {pace:.2f}×, {length}."
    words = f"{pace:.2f}× as fast as plain decoding" if pace >= 1 else f"at {pace:.2f}× the pace of plain decoding"
    return f"{best['arm']} decodes {words}, {length}."


def _cards(report: Report) -> list[dict[str, Any]]:
    rows = {row["arm"]: row for row in rows_of(report, workload=overall(report))}
    cards = []
    for arm in report["arms"][1:]:
        row, hidden = rows[arm["name"]], reason_not_shown(report, arm["name"])
        cards.append({
            "name": arm["name"],
            "K": arm["K"],
            "hidden": hidden,
            "speedup": number(row["speedup"]["value"]) if row["speedup"] else "-",
            "facts": [
                ("95% interval", _span(row["speedup"])),
                ("tau", interval(row["tau"])),
                ("round cost c", number(row["round_cost"])),
                ("end-to-end", "-" if hidden else number(row["call_ratio"], unit="x")),
                ("draft state", _bytes(arm["state_bytes"])),
            ],
        })  # fmt: skip
    return cards


def _columns(cards: int) -> int:
    return 3 if cards in (5, 6, 9) else max(1, min(cards, 4))


def _span(estimate: dict[str, float | None] | None) -> str:
    if estimate is None or estimate["low"] is None:
        return "-"
    return f"{estimate['low']:.2f} to {estimate['high']:.2f}"


def _groups(report: Report) -> list[list[list[str]]]:
    """Table rows as text, workload by workload."""
    groups: dict[str, list[list[str]]] = {}
    for row in rows_of(report):
        groups.setdefault(row["workload"], []).append(cells(report, row))
    return list(groups.values())


def _how(report: Report) -> str:
    sampling, whole = report["settings"]["sampling"], rows_of(report, workload=overall(report))[0]
    greedy = sampling["temperature"] == 0
    how = "Greedy" if greedy else f"Temperature {sampling['temperature']:g}, {sampling['rule']} rule"
    made, extra = report["made"], [f"{name} {value}" for name, value in report["conditions"].items()]
    facts = [how, "one request at a time", plural(whole["calls"], "call"), *extra, made["cpu"]]
    return ", ".join([*facts, plural(made["threads"], "thread")])


def _facts(report: Report) -> list[tuple[str, str]]:
    made, target, settings = report["made"], report["target"], report["settings"]
    versions = [f"{name} {made[name]}" for name in ("dlite", "torch", "transformers", "python") if made[name]]
    changed = {k: v for k, v in settings["sampling"].items() if v not in ({}, 0.0) and k != "seed"}
    width = f"{target['num_layers']} layers, width {target['hidden_size']}, vocabulary {target['vocab_size']:,}"
    return [
        ("target", f"{target['name']} ({width}, context {target['context_length']:,})"),
        *report["conditions"].items(),
        ("sampling", ", ".join(f"{k} {v}" for k, v in {"temperature": 0.0, **changed}.items())),
        ("seed", str(settings["seed"])),
        ("intervals", f"95%, {settings['resamples']:,} bootstrap resamples of calls"),
        ("near-tie", f"logits within {settings['tie_gap']:g} of the best"),
        ("machine", f"{made['cpu']}, {plural(made['threads'], 'thread')}, {made['system']}"),
        ("versions", ", ".join(versions)),
        ("commit", made["commit"] or "not a working copy"),
        ("date", made["date"]),
        ("command", " ".join(made["argv"])),
    ]


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} KB" if count < 1e6 else f"{count / 1e6:.1f} MB"
