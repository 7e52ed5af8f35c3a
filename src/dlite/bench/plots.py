"""The pictures of a report, from the report alone."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlite.bench.canvas import ARMS, FONT, LINE, PARTS, SOFT, WIDTH, axes, color_of, even, percent, picture, point
from dlite.bench.report import Report, overall, reason_not_shown, rows_of

DECODING = ("verify", "draft", "other")


def pictures(report: Report) -> dict[str, str]:
    """The four pictures by name; one that has nothing to show is ''."""
    drawn = {
        "workloads": (_tau_by_workload, "Acceptance length by workload and arm with 95% intervals"),
        "positions": (_acceptance, "Share of rounds in which the drafts up to each position were all accepted"),
        "time": (_time, "Time per token of each arm, split into verifying, drafting and the rest"),
        "contexts": (_by_context, "Acceptance length and speed-up by length of the prompt"),
    }
    return {name: picture(name, label, partial(paint, report=report)) for name, (paint, label) in drawn.items()}


def arm_colors(report: Report) -> dict[str, int]:
    """Each arm but plain -> the number of its colour; the same in every picture."""
    return {arm["name"]: i % len(ARMS) for i, arm in enumerate(report["arms"][1:])}


def _tau_by_workload(figure: Any, report: Report) -> bool:
    """Points with intervals; a tick at c: to the right of its tick an arm gains."""
    colors = arm_colors(report)
    workloads = list(dict.fromkeys(row["workload"] for row in rows_of(report)))
    step = 1.0 / (len(colors) + 1)
    figure.set_size_inches(WIDTH, 0.7 + len(workloads) * max(0.42, 0.24 * (len(colors) + 1)))
    panel = axes(figure, "x")
    for index, workload in enumerate(workloads):
        rows = {row["arm"]: row for row in rows_of(report, workload=workload)}
        for place, (arm, number) in enumerate(colors.items()):
            y, color, cost = index + step * (place + 1) - 0.5, color_of(number), rows[arm]["round_cost"]
            if rows[arm]["tau"]:
                point(panel, rows[arm]["tau"], y, color, along="x")
            # tau beside c is a speed-up, so the tick needs a passed check too.
            if cost is not None and not reason_not_shown(report, arm):
                panel.plot(cost, y, "|", color=color, ms=11, mew=1.6)
        if index:
            panel.axhline(index - 0.5, color=LINE, lw=0.8)
    even(panel, "y")
    panel.set_yticks(range(len(workloads)), workloads)
    panel.set_ylim(len(workloads) - 0.5, -0.5)
    most = max((v for row in rows_of(report) for v in _reach(row)), default=1)
    panel.set_xlim(0, 1.06 * max(most, 2))
    panel.set_xlabel("tokens committed per round (tau)")
    return bool(colors)


def _reach(row: dict[str, Any]) -> list[float]:
    estimate = row["tau"]
    # An absurdly dear round would squeeze the points; its tick may fall outside.
    return [] if estimate is None else [estimate["high"] or estimate["value"], min(row["round_cost"] or 0, 8)]


def _acceptance(figure: Any, report: Report) -> bool:
    """One line an arm: the share of rounds whose first i drafts were all kept."""
    colors = arm_colors(report)
    rows = [row for row in rows_of(report, workload=overall(report)) if row["acceptance"]]
    figure.set_size_inches(WIDTH / 2, _pair_height(report))
    panel = axes(figure, "y")
    for row in rows:
        positions = range(1, len(row["acceptance"]) + 1)
        panel.plot(positions, row["acceptance"], "o-", color=color_of(colors[row["arm"]]), ms=4.5)
    longest = max((len(row["acceptance"]) for row in rows), default=0)
    panel.set_xticks(range(1, longest + 1))
    panel.set_ylim(0, 1.02)
    percent(panel.set_yticks)
    panel.set_xlabel("draft position")
    return bool(rows)


def _time(figure: Any, report: Report) -> bool:
    """Milliseconds per token, stacked; an arm without a passed check is left out: its length would be a speed-up."""
    rows = rows_of(report, workload=overall(report))
    rows = [row for row in rows if row["tokens"] and not reason_not_shown(report, row["arm"])]
    figure.set_size_inches(WIDTH / 2, _pair_height(report))
    panel = axes(figure, "x")
    longest = 0.0
    for index, row in enumerate(rows):
        left = 0.0
        for part in DECODING:
            width = 1e3 * row["seconds"][part] / row["tokens"]
            panel.barh(index, width, left=left, height=0.6, color=PARTS[part], linewidth=0)
            left += width
        panel.annotate(f"{left:.3g}", (left, index), xytext=(5, 0), textcoords="offset points", va="center")
        longest = max(longest, left)
    panel.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_xlim(0, 1.15 * longest or 1)
    panel.set_xlabel("milliseconds per token, decoding")
    return bool(rows)


def _by_context(figure: Any, report: Report) -> bool:
    """tau and speed-up side by side, a point with its interval for each span of prompt lengths."""
    whole, colors = overall(report), arm_colors(report)
    spans = list(dict.fromkeys(row["context"] for row in report["figures"] if row["workload"] == whole))[1:]
    figure.set_size_inches(WIDTH, 2.9)
    panels = (("tau", "tokens per round (tau)"), ("speedup", "decode speed-up over plain"))
    for place, (key, title) in enumerate(panels, 1):
        panel = axes(figure, "y", place, len(panels))
        drawn = []
        for order, (arm, number) in enumerate(colors.items()):
            shift = 0.12 * (order - (len(colors) - 1) / 2)
            found = [(i, rows_of(report, workload=whole, context=span)) for i, span in enumerate(spans)]
            points = [(i + shift, row[key]) for i, rows in found for row in rows if row["arm"] == arm and row[key]]
            line = [x for x, _ in points], [estimate["value"] for _, estimate in points]
            panel.plot(*line, color=color_of(number), lw=1.2, alpha=0.5)
            for x, estimate in points:
                point(panel, estimate, x, color_of(number), along="y")
                drawn += [estimate["high"] or estimate["value"]]
        even(panel, "x")
        panel.set_xticks(range(len(spans)), spans)
        panel.set_xlim(-0.5, len(spans) - 0.5)
        panel.set_ylim(0, 1.08 * max([1.4, *drawn]))
        panel.set_xlabel("prompt tokens")
        panel.set_title(title, fontsize=FONT, loc="left")
        if not drawn:
            panel.annotate("not shown", (0.5, 0.5), xycoords="axes fraction", ha="center", color=SOFT)
    return bool(spans and colors)


def _pair_height(report: Report) -> float:
    """The two pictures that stand side by side are equally high."""
    return max(3.1, 0.8 + 0.4 * len(report["arms"]))
