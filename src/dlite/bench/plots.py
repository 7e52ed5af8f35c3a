"""Pictures of a report as SVG that takes its colours and fonts from the page around it, light or dark."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

from dlite.bench.report import Report, overall, reason_not_shown, rows_of

# Drawn in stand-in colours, which become the page's CSS variables.
INK, SOFT, LINE = "#010101", "#010102", "#010103"
PARTS = {"verify": "#010104", "draft": "#010105", "other": "#010106"}
ARMS = tuple(f"#0101{16 + i:02x}" for i in range(6))
VARIABLES = {INK: "ink", SOFT: "soft", LINE: "line"} | {c: f"part-{n}" for n, c in PARTS.items()}
VARIABLES |= {color: f"arm-{i}" for i, color in enumerate(ARMS)}
WIDTH = 8.6


def pictures(report: Report) -> dict[str, str]:
    """The four pictures by name; one that has nothing to show is ''."""
    return {
        "workloads": _draw(_tau_by_workload, report, "workloads"),
        "positions": _draw(_acceptance, report, "positions"),
        "time": _draw(_time, report, "time"),
        "contexts": _draw(_by_context, report, "contexts"),
    }


def arm_colors(report: Report) -> dict[str, int]:
    """Each arm but plain -> the number of its colour; the same in every picture."""
    return {arm["name"]: i % len(ARMS) for i, arm in enumerate(report["arms"][1:])}


def _draw(draw: Callable[[Any, Report], str], report: Report, name: str) -> str:
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 10.5, "text.color": INK}
    settings |= {"axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": INK, "lines.linewidth": 1.8}
    with matplotlib.rc_context(settings):
        figure = Figure(layout="constrained")
        label = draw(figure, report)
        if not label:
            return ""
        buffer = StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _themed(buffer.getvalue(), name, label)


def _themed(svg: str, name: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"font: ((?:\d+ )?[\d.]+px) [^;\"]+", r"font: \1 var(--sans)", svg)
    # Ids must be unique in the page that holds all pictures.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _tau_by_workload(figure: Any, report: Report) -> str:
    """Points with intervals; a tick at c: to the right of its tick an arm gains."""
    colors = arm_colors(report)
    workloads = list(dict.fromkeys(row["workload"] for row in rows_of(report)))
    step = 1.0 / (len(colors) + 1)
    figure.set_size_inches(WIDTH, 0.7 + len(workloads) * max(0.42, 0.24 * (len(colors) + 1)))
    axes = _axes(figure, "x")
    for index, workload in enumerate(workloads):
        rows = {row["arm"]: row for row in rows_of(report, workload=workload)}
        for place, (arm, number) in enumerate(colors.items()):
            y, color, cost = index + step * (place + 1) - 0.5, ARMS[number], rows[arm]["round_cost"]
            _estimate(axes, rows[arm]["tau"], y, color, along="x")
            # tau beside c is a speed-up, so the tick needs a passed check too.
            if cost is not None and not reason_not_shown(report, arm):
                axes.plot(cost, y, "|", color=color, ms=11, mew=1.6)
        if index:
            axes.axhline(index - 0.5, color=LINE, lw=0.8)
    axes.axvline(1, color=SOFT, lw=1, ls=(0, (3, 3)))
    axes.set_yticks(range(len(workloads)), workloads)
    axes.set_ylim(len(workloads) - 0.5, -0.5)
    most = max((v for row in rows_of(report) for v in _reach(row)), default=1)
    axes.set_xlim(0, 1.06 * max(most, 2))
    axes.set_xlabel("tokens committed per round (tau)")
    return "Acceptance length by workload and arm with 95% intervals" if colors else ""


def _reach(row: dict[str, Any]) -> list[float]:
    estimate = row["tau"]
    # An absurdly dear round would squeeze the points; its tick may fall outside.
    return [] if estimate is None else [estimate["high"] or estimate["value"], min(row["round_cost"] or 0, 8)]


def _acceptance(figure: Any, report: Report) -> str:
    """One line an arm: the share of rounds whose first i drafts were all kept."""
    colors = arm_colors(report)
    rows = [row for row in rows_of(report, workload=overall(report)) if row["acceptance"]]
    figure.set_size_inches(WIDTH / 2, _pair_height(report))
    axes = _axes(figure, "y")
    for row in rows:
        positions = range(1, len(row["acceptance"]) + 1)
        axes.plot(positions, row["acceptance"], "o-", color=ARMS[colors[row["arm"]]], ms=4.5)
    longest = max((len(row["acceptance"]) for row in rows), default=0)
    axes.set_xticks(range(1, longest + 1))
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])
    axes.set_xlabel("draft position")
    return "Share of rounds in which the drafts up to each position were all accepted" if rows else ""


def _time(figure: Any, report: Report) -> str:
    """Milliseconds per token, stacked; an arm without a passed check is left out: its length would be a speed-up."""
    rows = rows_of(report, workload=overall(report))
    rows = [row for row in rows if row["tokens"] and not reason_not_shown(report, row["arm"])]
    figure.set_size_inches(WIDTH / 2, _pair_height(report))
    axes = _axes(figure, "x")
    longest = 0.0
    for index, row in enumerate(rows):
        left = 0.0
        for part, color in PARTS.items():
            width = 1e3 * row["seconds"][part] / row["tokens"]
            axes.barh(index, width, left=left, height=0.6, color=color, linewidth=0)
            left += width
        axes.annotate(f"{left:.3g}", (left, index), xytext=(5, 0), textcoords="offset points", va="center")
        longest = max(longest, left)
    axes.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.15 * longest or 1)
    axes.set_xlabel("milliseconds per token, decoding")
    return "Time per token of each arm, split into verifying, drafting and the rest" if rows else ""


def _by_context(figure: Any, report: Report) -> str:
    """tau and speed-up side by side, a point with its interval for each span of prompt lengths."""
    whole, colors = overall(report), arm_colors(report)
    spans = list(dict.fromkeys(row["context"] for row in report["figures"] if row["workload"] == whole))[1:]
    figure.set_size_inches(WIDTH, 2.9)
    panels = (("tau", "tokens per round (tau)"), ("speedup", "decode speed-up over plain"))
    for place, (key, title) in enumerate(panels, 1):
        axes = _axes(figure, "y", place, len(panels))
        drawn = []
        for order, (arm, number) in enumerate(colors.items()):
            shift = 0.12 * (order - (len(colors) - 1) / 2)
            found = [(i, rows_of(report, workload=whole, context=span)) for i, span in enumerate(spans)]
            points = [(i + shift, row[key]) for i, rows in found for row in rows if row["arm"] == arm and row[key]]
            line = [x for x, _ in points], [estimate["value"] for _, estimate in points]
            axes.plot(*line, color=ARMS[number], lw=1.2, alpha=0.5)
            for x, estimate in points:
                _estimate(axes, estimate, x, ARMS[number], along="y")
                drawn += [estimate["high"] or estimate["value"]]
        axes.axhline(1, color=SOFT, lw=1, ls=(0, (3, 3)))
        axes.set_xticks(range(len(spans)), spans)
        axes.set_xlim(-0.5, len(spans) - 0.5)
        axes.set_ylim(0, 1.08 * max([1.4, *drawn]))
        axes.set_xlabel("prompt tokens")
        axes.set_title(title, fontsize=10.5, loc="left")
        if not drawn:
            axes.annotate("not shown", (0.5, 0.5), xycoords="axes fraction", ha="center", color=SOFT)
    return "Acceptance length and speed-up by length of the prompt" if spans and colors else ""


def _pair_height(report: Report) -> float:
    """The two pictures that stand side by side are equally high."""
    return max(3.1, 0.8 + 0.4 * len(report["arms"]))


def _axes(figure: Any, grid: str, place: int = 1, of: int = 1) -> Any:
    axes = figure.add_subplot(1, of, place)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, pad=6)
    axes.grid(axis=grid, color=LINE, lw=0.8)
    axes.set_axisbelow(True)
    return axes


def _estimate(axes: Any, estimate: dict[str, float | None] | None, place: float, color: str, *, along: str) -> None:
    if estimate is None:
        return
    if estimate["low"] is not None:
        span, here = [estimate["low"], estimate["high"]], [place, place]
        axes.plot(*((span, here) if along == "x" else (here, span)), color=color, lw=2, solid_capstyle="round")
    point = (estimate["value"], place) if along == "x" else (place, estimate["value"])
    axes.plot(*point, "o", color=color, ms=6.5)
