"""The pictures of an audit, from its report alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dlite.audit.figures import COPIED, NO_TOOL
from dlite.bench.canvas import FONT, INK, PARTS, SOFT, WIDTH, axes, color_of, even, percent, picture, point

Report = dict[str, Any]
MOST_TOOLS = 10
SIZES = ("B", "KB", "MB", "GB", "TB")


def pictures(report: Report) -> dict[str, str]:
    """Every picture by name; one that has nothing to show is ''."""
    drawn = {
        "contexts": (_contexts, "Tokens a round and decode speed-up by length of the context"),
        "spans": (_spans, "Share of tokens that were accepted drafts, by kind of text"),
        "tools": (_tools, "Tokens a round by the tool that the log calls"),
        "turns": (_turns, "Tokens a round by turn of the conversation"),
        "positions": (_positions, "Share of rounds in which the drafts up to each position were all accepted"),
        "time": (_time, "Seconds a call by part, with prefix reuse on and off"),
        "evens": (_evens, "Predicted decode speed-up by drafts a round"),
        "memory": (_memory, "Bytes of the target's key-values and of each arm's draft state"),
    }
    return {name: picture(name, label, partial(paint, report=report)) for name, (paint, label) in drawn.items()}


def arm_colors(report: Report) -> dict[str, int]:
    """Each drafting arm -> the number of its colour; the same in every picture."""
    names = [arm["name"] for arm in report["arms"] if arm["name"] != "plain"]
    return {name: i for i, name in enumerate(names)}


def size(count: float) -> str:
    """Bytes with a unit that suits them."""
    for unit in SIZES:
        if count < 999.5 or unit == SIZES[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if count >= 100 or count == int(count) else f"{count:.1f} {unit}"


def _groups(report: Report, by: str) -> list[str]:
    return list(dict.fromkeys(row["group"] for row in report["figures"] if row["by"] == by))


def _row(report: Report, by: str, group: str, arm: str) -> dict[str, Any]:
    wanted = (by, group, arm)
    return next((r for r in report["figures"] if (r["by"], r["group"], r["arm"]) == wanted), {})


def _contexts(figure: Any, report: Report) -> bool:
    """tau with the price of a round as a tick, and beside it the speed-up."""
    groups, colors = _groups(report, "context"), arm_colors(report)
    if not groups or not colors:
        return False
    priced = any(row["speedup"] for row in report["figures"] if row["by"] == "context" and row["arm"] in colors)
    panels = [("tau", "tokens a round, and its cost in plain steps" if priced else "tokens a round")]
    if priced:
        panels.append(("speedup", "decode speed-up over plain"))
    figure.set_size_inches(WIDTH, 3.0)
    for place, (key, title) in enumerate(panels, 1):
        panel = axes(figure, "y", place, len(panels))
        drawn = [1.4]
        for order, (arm, number) in enumerate(colors.items()):
            shift = 0.14 * (order - (len(colors) - 1) / 2)
            rows = [(i + shift, _row(report, "context", group, arm)) for i, group in enumerate(groups)]
            rows = [(x, row) for x, row in rows if row and row[key]]
            panel.plot(
                [x for x, _ in rows], [row[key]["value"] for _, row in rows], color=color_of(number), lw=1.2, alpha=0.5
            )
            for x, row in rows:
                point(panel, row[key], x, color_of(number), along="y")
                if key == "tau" and row["round_cost"] and row["speedup"]:
                    panel.plot(x, row["round_cost"], "_", color=color_of(number), ms=15, mew=1.8)
                drawn.append(row[key]["high"] or row[key]["value"])
        even(panel, "x")
        _named(panel, groups, "context tokens", title)
        panel.set_ylim(0, 1.08 * max(drawn))
    return True


def _turns(figure: Any, report: Report) -> bool:
    groups, colors = _groups(report, "turn"), arm_colors(report)
    if not groups or not colors:
        return False
    figure.set_size_inches(WIDTH / 2, 3.0)
    panel = axes(figure, "y")
    highest = 1.4
    for order, (arm, number) in enumerate(colors.items()):
        shift = 0.14 * (order - (len(colors) - 1) / 2)
        rows = [(i + shift, _row(report, "turn", group, arm)) for i, group in enumerate(groups)]
        for x, row in rows:
            if row and row["tau"]:
                point(panel, row["tau"], x, color_of(number), along="y")
                highest = max(highest, row["tau"]["high"] or row["tau"]["value"])
    even(panel, "x")
    _named(panel, groups, "turn", "")
    panel.set_ylim(0, 1.08 * highest)
    return True


def _positions(figure: Any, report: Report) -> bool:
    rows = [row for row in report["figures"] if row["by"] == "all" and row["acceptance"]]
    if not rows:
        return False
    colors = arm_colors(report)
    figure.set_size_inches(WIDTH / 2, 3.0)
    panel = axes(figure, "y")
    for row in rows:
        places = range(1, len(row["acceptance"]) + 1)
        panel.plot(places, row["acceptance"], "o-", color=color_of(colors[row["arm"]]), ms=4.5)
    panel.set_xticks(range(1, max((len(row["acceptance"]) for row in rows), default=1) + 1))
    percent(panel.set_yticks)
    panel.set_ylim(0, 1.02)
    panel.set_xlabel("draft position")
    return True


def _spans(figure: Any, report: Report) -> bool:
    """One line a kind of text; what is copied stands apart, as it may be any of the others."""
    names = list(dict.fromkeys(row["span"] for row in report["spans"]))
    if not names:
        return False
    colors = arm_colors(report)
    places = [i + (0.5 if name == COPIED else 0.0) for i, name in enumerate(names)]
    figure.set_size_inches(WIDTH / 2, 0.8 + 0.56 * len(names) * max(1, 0.4 * len(colors)))
    panel = axes(figure, "x")
    labels = []
    for place, name in zip(places, names, strict=True):
        rows = {row["arm"]: row for row in report["spans"] if row["span"] == name}
        share = next(iter(rows.values()))["share"]
        labels.append(name.replace(" the ", "\nthe ") + f"\n{share:.0%} of tokens")
        for order, (arm, number) in enumerate(colors.items()):
            if arm in rows and rows[arm]["accepted"]:
                y = place + 0.6 * ((order + 0.5) / len(colors) - 0.5)
                point(panel, rows[arm]["accepted"], y, color_of(number), along="x")
    panel.set_yticks(places, labels)
    panel.set_ylim(max(places, default=0) + 0.6, -0.6)
    panel.set_xlim(0, 1)
    percent(panel.set_xticks)
    panel.set_xlabel("tokens that were accepted drafts")
    return True


def _tools(figure: Any, report: Report) -> bool:
    names, colors = _groups(report, "tool")[:MOST_TOOLS], arm_colors(report)
    if not colors or set(names) <= {NO_TOOL}:
        return False
    figure.set_size_inches(WIDTH / 2, 0.8 + 0.4 * len(names) * max(1, 0.5 * len(colors)))
    panel = axes(figure, "x")
    most, labels = 2.0, []
    for place, name in enumerate(names):
        rows = {arm: _row(report, "tool", name, arm) for arm in colors}
        calls = max((row["calls"] for row in rows.values() if row), default=0)
        labels.append(f"{name if len(name) < 22 else name[:20] + '…'} ({calls})")
        for order, (arm, number) in enumerate(colors.items()):
            if rows[arm] and rows[arm]["tau"]:
                y = place + 0.6 * ((order + 0.5) / len(colors) - 0.5)
                point(panel, rows[arm]["tau"], y, color_of(number), along="x")
                most = max(most, rows[arm]["tau"]["high"] or rows[arm]["tau"]["value"])
    even(panel, "y")
    panel.set_yticks(range(len(names)), labels)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_xlim(0, 1.05 * most)
    panel.set_xlabel("tokens a round (calls in brackets)")
    return True


def _time(figure: Any, report: Report) -> bool:
    """Stacked bars; an arm without a passed check is left out, as its length would be a speed-up."""
    shown = {arm["name"] for arm in report["arms"] if arm["lossless"] or arm["name"] == "plain"}
    rows = [row for row in report["reuse"] if row["arm"] in shown]
    if not rows:
        return False
    figure.set_size_inches(WIDTH / 2, 0.9 + 0.46 * len(rows))
    panel = axes(figure, "x")
    longest = 0.0
    for index, row in enumerate(rows):
        left = 0.0
        for part, color in PARTS.items():
            width = row["seconds"][part] / row["calls"]
            panel.barh(index, width, left=left, height=0.62, color=color, linewidth=0)
            left += width
        panel.annotate(f"{left:.3g} s", (left, index), xytext=(5, 0), textcoords="offset points", va="center")
        longest = max(longest, left)
    both = len({row["reuse"] for row in rows}) > 1
    names = [f"{row['arm']}\nreuse {row['reuse']}" if both else row["arm"] for row in rows]
    panel.set_yticks(range(len(rows)), names)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_xlim(0, 1.25 * longest or 1)
    panel.set_xlabel("seconds a call")
    return True


def _evens(figure: Any, report: Report) -> bool:
    """A panel for each prompt length at which rounds were priced."""
    found, colors = report["break_even"], arm_colors(report)
    contexts = sorted({context for one in found for context, _ in one["by_context"]})
    if not contexts:
        return False
    figure.set_size_inches(WIDTH, 2.9)
    paced = [pace for one in found for _, paces in one["by_context"] for pace in paces]
    highest = max([1.2, *(pace["tau"] / pace["cost"] for pace in paced)])
    first = None
    for place, context in enumerate(contexts, 1):
        panel = axes(figure, "y", place, len(contexts), first)
        first = first or panel
        for one in found:
            paces: list[Any] = next((paces for known, paces in one["by_context"] if known == context), [])
            speeds = [pace["tau"] / pace["cost"] for pace in paces]
            color = color_of(colors[one["arm"]])
            panel.plot([pace["K"] for pace in paces], speeds, "o-", color=color, ms=4.5)
            if speeds:
                best = max(range(len(speeds)), key=lambda i: speeds[i])
                panel.plot(paces[best]["K"], speeds[best], "o", color=color, ms=9, mfc="none", mew=1.6)
        even(panel, "x")
        panel.set_xticks(sorted({pace["K"] for pace in paced}))
        panel.set_title(f"{context:,} tokens", fontsize=FONT, loc="left")
        panel.set_xlabel("drafts a round, K")
        panel.set_ylim(0, 1.12 * highest)
        panel.tick_params(labelleft=place == 1)
    return True


def _memory(figure: Any, report: Report) -> bool:
    """Points on a scale of powers of ten, from the shortest context to the longest."""
    rows = report["memory"]
    if not rows:
        return False
    contexts = sorted({row["context"] for row in rows})
    colors = arm_colors(report)
    lines: list[tuple[str, str, list[float]]] = [
        ("target key-values", SOFT, [_at(rows, "plain", c, "kv_bytes") for c in contexts])
    ]
    lines += [(arm, color_of(n), [_at(rows, arm, c, "state_bytes") for c in contexts]) for arm, n in colors.items()]
    figure.set_size_inches(WIDTH / 2, 0.8 + 0.46 * len(lines))
    panel = axes(figure, "x")
    panel.set_xscale("log")
    for index, (_, color, values) in enumerate(lines):
        shown = [max(value, 1.0) for value in values]
        panel.plot(shown, [index] * len(shown), "-", color=color, lw=2, solid_capstyle="round")
        panel.plot(shown[-1:], [index], "o", color=color, ms=6.5)
        panel.annotate(size(values[-1]), (shown[-1], index), xytext=(8, 0), textcoords="offset points", va="center")
    low = min((max(v, 1.0) for *_, values in lines for v in values), default=1.0)
    high = max((v for *_, values in lines for v in values), default=1.0)
    panel.set_xlim(low / 3, high * 50)
    powers = [10**i for i in range(0, 16) if low / 3 <= 10**i <= high * 50]
    powers = powers[:: 1 + len(powers) // 5]
    panel.set_xticks(powers, [size(p) for p in powers])
    panel.minorticks_off()
    panel.set_yticks(range(len(lines)), [name for name, *_ in lines])
    panel.set_ylim(len(lines) - 0.4, -0.6)
    return True


def _at(rows: Sequence[dict[str, Any]], arm: str, context: int, key: str) -> float:
    return float(next((r[key] for r in rows if (r["arm"], r["context"]) == (arm, context)), 0))


def _named(panel: Any, groups: Sequence[str], what: str, title: str) -> None:
    panel.set_xticks(range(len(groups)), groups)
    panel.set_xlim(-0.5, len(groups) - 0.5)
    panel.set_xlabel(what)
    if title:
        panel.set_title(title, fontsize=FONT, loc="left", color=INK)
