"""The JSON of a load test, and the tables made from it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dlite.bench.report import write_text
from dlite.bench.tables import markdown_table, number
from dlite.provenance import provenance
from dlite.serve.load import Level, LoadSettings, Server

Report = dict[str, Any]
FORMAT = "dlite-load-1"
HEADER = (
    "in flight", "requests", "errors", "tokens/s", "first token, s", "p95", "ms per token", "p95", "s per call", "tau",
    "accepted",
)  # fmt: skip


def build(
    server: Server,
    levels: Sequence[Level],
    *,
    settings: LoadSettings,
    argv: Sequence[str],
    conditions: Mapping[str, str],
) -> Report:
    """Figures of each level, every request beside them."""
    return {
        "format": FORMAT,
        "made": provenance(argv),
        "server": server.url,
        "model": server.model,
        "settings": asdict(settings),
        "conditions": dict(conditions),
        "levels": [{**figures(level), "answers": [asdict(one) for one in level.answers]} for level in levels],
    }


def figures(level: Level) -> dict[str, Any]:
    """One level in numbers: tokens of all requests a second, times of those that were answered."""
    good = [one for one in level.answers if one.error is None]
    first = [one.first - one.start for one in good if one.first is not None]
    per_token = [
        1000 * (one.end - one.first) / (one.tokens - 1) for one in good if one.first is not None and one.tokens > 1
    ]
    tokens = sum(one.tokens for one in good)
    return {
        "concurrency": level.concurrency,
        "requests": len(level.answers),
        "seconds": level.seconds,
        "tokens": tokens,
        "tokens_counted_by_server": all(one.counted for one in good),
        "tokens_per_second": tokens / level.seconds,
        "first_token_seconds": _spread(first),
        "token_milliseconds": _spread(per_token),
        "call_seconds": _spread([one.end - one.start for one in good]),
        "errors": dict(Counter(one.error for one in level.answers if one.error)),
        "drafts": _drafts(level),
    }


def write(report: Report, out: Path) -> str:
    """report.json, then report.md from it; the Markdown comes back."""
    write_text(json.dumps(report, indent=1) + "\n", out / "report.json")
    text = markdown(report)
    write_text(text, out / "report.md")
    return text


def markdown(report: Report) -> str:
    """The table, its conditions above and what went wrong below."""
    made, settings = report["made"], report["settings"]
    how = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    extra = [f"{name} {value}" for name, value in report["conditions"].items()]
    machine = [f"client on {made['cpu']}", f"dlite {made['dlite']}", made["date"][:10]]
    facts = [how, "closed loop, warm-up left out, streamed", *extra, *machine]
    parts = [
        f"# dlite bench: {report['model']} at {report['server']}",
        " · ".join(facts),
        markdown_table(HEADER, [cells(level) for level in report["levels"]]),
    ]
    if notes := _notes(report):
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) + "\n"


def cells(level: dict[str, Any]) -> list[str]:
    """One level as text, in the order of ``HEADER``."""
    first, token, call = (level[name] or {} for name in ("first_token_seconds", "token_milliseconds", "call_seconds"))
    drafts = level["drafts"] or {}
    rate = drafts.get("accepted_share")
    return [
        str(level["concurrency"]),
        str(level["requests"]),
        str(sum(level["errors"].values())),
        number(level["tokens_per_second"], 1),
        number(first.get("mean"), 3),
        number(first.get("p95"), 3),
        number(token.get("mean"), 1),
        number(token.get("p95"), 1),
        number(call.get("mean"), 2),
        number(drafts.get("tau")),
        "-" if rate is None else f"{rate:.1%}",
    ]


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, [50, 95, 99]).tolist()
    return {"mean": float(np.mean(values)), "p50": p50, "p95": p95, "p99": p99}


def _drafts(level: Level) -> dict[str, Any] | None:
    """The server's own counts: tau is accepted drafts a round and one more, without the cut at the end of an answer."""
    count = level.drafts
    if count is None:
        return None
    return {
        "rounds": count.rounds,
        "proposed": count.proposed,
        "accepted": count.accepted,
        "tau": 1 + count.accepted / count.rounds,
        "accepted_share": count.accepted / count.proposed if count.proposed else None,
        "acceptance_by_position": [value / count.rounds for value in count.by_position],
    }


def _notes(report: Report) -> list[str]:
    notes = []
    for level in report["levels"]:
        for error, times in level["errors"].items():
            notes.append(f"{level['concurrency']} in flight: {times} of {level['requests']} requests failed: {error}")
        if not level["tokens_counted_by_server"]:
            notes.append(
                f"{level['concurrency']} in flight: the server does not count tokens, so pieces of the stream are counted; "
                "with drafts a piece may hold several tokens."
            )
    if all(level["drafts"] is None for level in report["levels"]):
        notes.append("the server tells nothing of drafts at /metrics: it drafts none, or does not count as vLLM does.")
    return notes
