"""An audit as one self-contained page: no scripts, no fonts or files from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlite.audit.marks import TARGET
from dlite.audit.plots import arm_colors, pictures, size
from dlite.audit.strips import KINDS, kind_of, shares, strips, words
from dlite.bench.report import write_text
from dlite.bench.tables import interval, number, plural

Report = dict[str, Any]
TEMPLATE = Path(__file__).with_name("report.html.jinja")
SPANS = ("kind of text", "arm", "tokens", "share of tokens", "accepted drafts [95%]")
SOURCES = ("given by", "arm", "tokens", "share of tokens", "rounds it drafted in", "tau of these")
PARTS = ("prefill", "draft", "verify", "other")
HEADER = ("tau [95%]", "round cost c", "decode speed-up [95%]", "whole call [95%]", *PARTS)
GROUPED = {"all": "", "context": "context tokens", "turn": "turn", "tool": "tool"}


def html(report: Report) -> str:
    """The page, from the report alone."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template(TEMPLATE.name)
    return template.render(
        report=report,
        cards=_cards(report),
        pictures=pictures(report),
        colors=arm_colors(report),
        tables=[*_tables(report), *_token_tables(report)],
        **_gave(report),
        heat=_heat(report),
        memory=_memory(report),
        checks=check_lines(report),
        read=_read(report),
        how=_how(report),
        facts=_facts(report),
    )


def write_html(report: Report, path: str | Path) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(html(report), path)


def check_lines(report: Report) -> list[str]:
    """What the comparison with plain decoding found, arm by arm."""
    lines = []
    for arm in report["arms"]:
        if not arm.get("checks"):
            continue
        answers, ties = (
            plural(arm["checks"], "answer"),
            f", {arm['near_ties']} up to a near-tie" if arm["near_ties"] else "",
        )
        if arm["lossless"]:
            lines.append(f"{arm['name']}: the ids of plain decoding, token for token, in {answers}{ties}.")
        else:
            lines.append(f"{arm['name']}: NOT the ids of plain decoding ({answers} compared{ties}).")
        lines += [f"{arm['name']}: {_difference(one)}" for one in arm["differences"][:5]]
    return lines


def _difference(one: dict[str, Any]) -> str:
    where = f"{one['turn']} leaves plain decoding at output token {one['position']}"
    if one["gap"] is None:
        return f"{where}: one answer ends there."
    kind = "a near-tie" if one["near_tie"] else "a difference"
    return f"{where}, {kind}: logits {one['plain_logit']:.6f} and {one['arm_logit']:.6f}, gap {one['gap']:.2e}."


def _cards(report: Report) -> list[dict[str, Any]]:
    rows = {row["arm"]: row for row in report["figures"] if row["by"] == "all"}
    last = {row["arm"]: row for row in report["memory"]}  # at the longest context
    cards = []
    for arm in report["arms"]:
        row = rows.get(arm["name"])
        if row is None or arm["name"] == "plain":
            continue
        hidden = (
            None if row["speedup"] else "not known: there are no times" if report["source"] == "server" else "not shown"
        )
        state = last.get(arm["name"])
        facts = [
            ("95% interval", _span(row["speedup"])),
            ("tau", interval(row["tau"])),
            ("round cost c", number(row["round_cost"])),
            ("whole call", interval(row["call_ratio"], "x")),
            ("draft state a request", "-" if state is None else size(state["state_bytes"] / state["requests"])),
        ]
        cards.append({
            "name": arm["name"],
            "hidden": hidden,
            "speedup": number(row["speedup"]["value"]) if row["speedup"] else "-",
            "facts": [(name, value) for name, value in facts if value != "-"],
        })  # fmt: skip
    return cards


def _span(estimate: dict[str, float | None] | None) -> str:
    if estimate is None or estimate["low"] is None:
        return "-"
    return f"{estimate['low']:.2f} to {estimate['high']:.2f}"


def _tables(report: Report) -> list[dict[str, Any]]:
    """One table for each way of grouping, the group first; columns that nothing is known for are left out."""
    tables = []
    for by, title in GROUPED.items():
        rows = [row for row in report["figures"] if row["by"] == by]
        if rows and not (by == "tool" and {row["group"] for row in rows} == {"no tool"}):
            cells = [_cells(row) for row in rows]
            known = [i for i, column in enumerate(zip(*cells, strict=True)) if set(column) != {"-"}]
            header = (title, "arm", "log rows" if report["source"] == "server" else "calls", *HEADER)
            tables.append({"header": [header[i] for i in known], "rows": [[row[i] for i in known] for row in cells]})
    return tables


def _cells(row: dict[str, Any]) -> list[str]:
    seconds = [row["seconds"][part] for part in PARTS]
    whole = sum(seconds)
    return [
        row["group"],
        row["arm"],
        str(row["calls"]),
        interval(row["tau"]),
        number(row["round_cost"]),
        interval(row["speedup"], "x"),
        interval(row["call_ratio"], "x"),
        *(f"{part / whole:.0%}" if whole else "-" for part in seconds),
    ]


def _token_tables(report: Report) -> list[dict[str, Any]]:
    """What single tokens are part of, and who gave them."""
    spans = [
        [row["span"], row["arm"], f"{row['tokens']:,}", f"{row['share']:.0%}", _percents(row["accepted"])]
        for row in report["spans"]
    ]
    sources = [
        [
            row["source"] if row["source"] != TARGET else "the target",
            row["arm"],
            f"{row['tokens']:,}",
            f"{row['share']:.0%}",
            f"{row['rounds']:,}" if row["source"] != TARGET else f"{row['rounds']:,} without drafts",
            number(row["tau"]) if row["rounds"] else "-",
        ]
        for row in sorted(report["sources"], key=lambda row: row["source"] == TARGET)
    ]
    found = ((SPANS, spans), (SOURCES, sources))
    return [{"header": list(header), "rows": rows} for header, rows in found if rows]


def _percents(estimate: dict[str, float | None] | None) -> str:
    if estimate is None or estimate["value"] is None:
        return "-"
    low, high = estimate["low"], estimate["high"]
    return f"{estimate['value']:.0%}" + ("" if low is None or high is None else f" [{low:.0%}, {high:.0%}]")


def _gave(report: Report) -> dict[str, Any]:
    """Who gave the tokens: of all answers, and of some token by token, with the text unless it is redacted."""
    answers = [
        {**sample, "strips": strips(sample), "words": [] if report["redacted"] else words(sample)}
        for sample in report["samples"]
    ]
    found = {kind_of(row["source"]) for row in report["sources"]}
    kinds = {kind: name for kind, name in KINDS.items() if kind in found}
    return {"shares": shares(report), "answers": answers, "kinds": kinds}


def _heat(report: Report) -> dict[str, Any] | None:
    """For each arm the predicted speed-up of every K at every number of requests at a time."""
    found = [one for one in report["break_even"] if one["by_batch"]]
    if not found:
        return None
    grids = []
    for one in found:
        speeds = {
            (pace["K"], requests): pace["tau"] / pace["cost"] for requests, paces in one["by_batch"] for pace in paces
        }
        sizes = [requests for requests, _ in one["by_batch"]]
        best = {requests: max((speed, K) for (K, at), speed in speeds.items() if at == requests) for requests in sizes}
        rows = [
            {"K": K, "cells": [_cell(speeds.get((K, at)), best[at] == (speeds.get((K, at)), K)) for at in sizes],
             "stop": "pays throughout" if stop is None else "never pays" if stop == sizes[0] else f"loses from {stop} on"}
            for K, stop in one["stops"]
        ]  # fmt: skip
        grids.append({"arm": one["arm"], "sizes": sizes, "rows": rows})
    largest = max(grid["sizes"][-1] for grid in grids)
    wanted = max((row["requests"] for row in report["memory"]), default=largest)
    return {"grids": grids, "context": found[0]["batch_context"], "largest": largest, "wanted": wanted}


def _cell(speed: float | None, best: bool) -> dict[str, Any]:
    """A speed-up with a colour as strong as what it gains or loses."""
    if speed is None:
        return {"text": "-", "look": "", "by": 0}
    look = ("gain" if speed >= 1 else "loss") + (" best" if best and speed >= 1 else "")
    return {"text": number(speed), "look": look, "by": round(6 + 54 * min(1.0, abs(speed - 1)))}


def _memory(report: Report) -> dict[str, Any] | None:
    """A table: key-values and every arm's state at each context length."""
    rows = report["memory"]
    if not rows:
        return None
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    arms = [arm["name"] for arm in report["arms"][1:]]
    found = {(row["arm"], row["context"]): row for row in rows}
    lines = [["target key-values", *(size(found["plain", c]["kv_bytes"]) for c in contexts)]]
    lines += [[f"{arm}, draft state", *(size(found[arm, c]["state_bytes"]) for c in contexts)] for arm in arms]
    return {"requests": rows[0]["requests"], "contexts": [f"{c:,}" for c in contexts], "rows": lines}


def _read(report: Report) -> list[str]:
    """What was replayed, then what was left out and why."""
    reading = report["reading"]
    lines = [f"{plural(count, 'conversation')} in the layout {layout}" for layout, count in reading["layouts"].items()]
    if report["source"] == "replay":
        turns = report["turns"]
        traces = len({turn["trace"] for turn in turns})
        lines.append(f"{plural(len(turns), 'turn')} of {plural(traces, 'conversation')} replayed")
    else:
        whole = report["figures"][0]
        lines.append(f"{plural(whole['rounds'], 'round')} in {plural(whole['calls'], 'row')} of the log")
    for one in reading["skipped"]:
        places = f": {'; '.join(one['places'])}" if one["places"] else ""
        more = ", ..." if len(one["places"]) < one["count"] and places else ""
        lines.append(f"left out, {one['count']:,}: {one['reason']}{places}{more}")
    return lines


def _how(report: Report) -> str:
    made, reading = report["made"], report["reading"]
    if report["source"] == "server":
        return f"From a server's own counts, {', '.join(reading['sources'])}"
    sampling = report["settings"]["sampling"]
    greedy = sampling["temperature"] == 0
    how = "Greedy" if greedy else f"Temperature {sampling['temperature']:g}, {sampling['rule']} rule"
    counts = sum(row["calls"] for row in report["figures"] if (row["by"], row["arm"]) == ("all", "plain"))
    limit = f"at most {report['settings']['max_new_tokens']} new tokens"
    facts = [how, "history as logged", plural(counts, "call"), limit, "one request at a time", made["cpu"]]
    return ", ".join([*facts, plural(made["threads"], "thread")])


def _facts(report: Report) -> list[tuple[str, str]]:
    made, target, settings = report["made"], report["target"], report["settings"]
    versions = [f"{name} {made[name]}" for name in ("dlite", "torch", "transformers", "python") if made[name]]
    facts = [("sources", ", ".join(report["reading"]["sources"]))]
    if target:
        width = f"{target['num_layers']} layers, width {target['hidden_size']}, {target['dtype']}"
        rendering = "plain text (--plain)" if report["reading"]["plain"] else "the target's chat template"
        facts += [
            ("target", f"{target['name']} ({width}, context {target['context_length']:,})"),
            ("rendering", rendering),
            ("prefix reuse", settings["reuse"]),
            ("near-tie", f"logits within {settings['tie_gap']:g} of the best"),
        ]
    return [
        *facts,
        ("seed", str(settings["seed"])),
        ("intervals", "95%, bootstrap over calls"),
        ("machine", f"{made['cpu']}, {plural(made['threads'], 'thread')}, {made['system']}"),
        ("versions", ", ".join(versions)),
        ("commit", made["commit"] or "not a working copy"),
        ("date", made["date"]),
        ("command", " ".join(made["argv"])),
    ]
