"""A report that can be shown around: figures and times, and nothing that was said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlite.audit.figures import NO_TOOL

Report = dict[str, Any]


def redacted(report: Report) -> Report:
    """The report without anything that was said, asked or called: no texts, no token ids, no names of tools or traces."""
    tools: dict[str, str] = {}
    traces: dict[str, str] = {}
    places: dict[str, str] = {}
    for turn in report["turns"]:
        trace = traces.setdefault(turn["trace"], f"trace {len(traces) + 1}")
        places[turn["id"]] = f"{trace}, turn {sum(p.startswith(trace + ',') for p in places.values()) + 1}"
    groups = [row["group"] for row in report["figures"] if row["by"] == "tool" and row["group"] != NO_TOOL]
    for name in (*groups, *(turn["tool"] for turn in report["turns"] if turn["tool"])):
        tools.setdefault(name, f"tool {len(tools) + 1}")
    skipped = [{**one, "places": []} for one in report["reading"]["skipped"]]
    return {
        **report,
        "reading": {**report["reading"], "skipped": skipped},
        "figures": [
            {**r, "group": tools.get(r["group"], r["group"])} if r["by"] == "tool" else r for r in report["figures"]
        ],
        "arms": [{**a, "differences": [_hidden(d, places) for d in a.get("differences", ())]} for a in report["arms"]],
        "turns": [
            {**t, "id": places[t["id"]], "trace": traces[t["trace"]], "tool": tools.get(t["tool"], "")}
            for t in report["turns"]
        ],
        "trials": [{k: places[v] if k == "turn" else v for k, v in t.items() if k != "ids"} for t in report["trials"]],
        "samples": [_blank(sample, places) for sample in report["samples"]],
        "redacted": True,
    }


def _hidden(difference: dict[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    return {**difference, "turn": places[difference["turn"]], "plain_token": None, "arm_token": None}


def _blank(sample: dict[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """Who gave each token, without the tokens."""
    answers = [{**a, "tokens": [["", *rest] for _, *rest in a["tokens"]]} for a in sample["answers"]]
    return {**sample, "turn": places[sample["turn"]], "answers": answers}
