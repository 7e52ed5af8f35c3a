"""Tables of a report, for the terminal and for Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlite.bench.report import Report, overall, reason_not_shown, rows_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

HEADER = (
    "workload", "arm", "calls", "tau [95%]", "round cost c", "decode speed-up [95%]", "s per call", "end-to-end",
    "tokens/s", "draft ms", "verify ms", "other", "near ties", "loops left out",
)  # fmt: skip
IN_TERMINAL = (*HEADER[:6], "end-to-end")
IN_WIDE_TERMINAL = (*IN_TERMINAL[:6], "s per call", "end-to-end", "draft ms", "verify ms", "other")
WIDTHS = {"tau [95%]": 17, "decode speed-up [95%]": 19}  # so that intervals stay on one line
CONTEXT_HEADER = ("prompt tokens", *HEADER[1:6])


def show(report: Report, console: Console | None = None) -> None:
    """Print the table and what the losslessness check found."""
    from rich.console import Console

    console = console or Console()
    console.print(table(report, IN_WIDE_TERMINAL if console.width >= 116 else IN_TERMINAL))
    for line in check_lines(report):
        console.print(f"- {line}", markup=False, highlight=False)


def table(report: Report, columns: tuple[str, ...] = HEADER) -> Table:
    """The figures by workload, for ``rich``, with some of the columns of ``HEADER``."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    made = Table(
        title=f"dlite bench: {report['target']['name']}", caption=caption(report), box=SIMPLE_HEAD,
        padding=0, show_edge=False, pad_edge=False,
    )  # fmt: skip
    shown = [HEADER.index(name) for name in columns]
    for index in shown:
        name = escape(HEADER[index].replace("-to-", " to ").replace(" to end", "\nto end").replace(" ", "\n", 1))
        made.add_column(name, justify="left" if index < 2 else "right", min_width=WIDTHS.get(HEADER[index]))
    before = None
    for row in rows_of(report):
        if before not in (None, row["workload"]):
            made.add_section()
        texts = cells(report, row)
        made.add_row(*("" if i == 0 and row["workload"] == before else escape(texts[i]) for i in shown))
        before = row["workload"]
    return made


def markdown(report: Report) -> str:
    """The figures by workload and by context length, the conditions above them, the checks below."""
    parts = [f"# dlite bench: {report['target']['name']}", caption(report)]
    parts.append(markdown_table(HEADER, [cells(report, row) for row in rows_of(report)]))
    by_context = context_rows(report)
    if by_context:
        parts += ["## By context length", markdown_table(CONTEXT_HEADER, by_context)]
    parts.append("\n".join(f"- {line}" for line in check_lines(report)))
    return "\n\n".join(parts) + "\n"


def caption(report: Report) -> str:
    """The conditions of the numbers in one line."""
    made, settings = report["made"], report["settings"]
    sampling = settings["sampling"]
    how = "greedy" if sampling["temperature"] == 0 else f"temperature {sampling['temperature']:g} ({sampling['rule']})"
    extra = [f"{name} {value}" for name, value in report["conditions"].items()]
    facts = [how, "single requests", *extra, made["cpu"], plural(made["threads"], "thread"), f"torch {made['torch']}"]
    return " · ".join([*facts, f"dlite {made['dlite']}", f"seed {settings['seed']}", made["date"][:10]])


def cells(report: Report, row: dict[str, Any]) -> list[str]:
    """One row of the figures as text, in the order of ``HEADER``."""
    hidden = reason_not_shown(report, row["arm"])
    return [
        row["workload"],
        row["arm"],
        str(row["calls"]),
        interval(row["tau"]),
        number(row["round_cost"]),
        hidden or interval(row["speedup"], "x"),
        number(row["call_seconds"], 3),
        "-" if hidden else number(row["call_ratio"], unit="x"),
        "-" if hidden else number(row["tokens_per_second"], 1),
        number(row["draft_ms"], 1),
        number(row["verify_ms"], 1),
        "-" if row["other_share"] is None else f"{row['other_share']:.1%}",
        str(row["near_ties"]),
        str(row["loops"]) if not report["settings"]["include_loops"] else f"0 of {row['loops']}",
    ]


def context_rows(report: Report) -> list[list[str]]:
    """Text rows by context length over all calls, in the order of ``CONTEXT_HEADER``."""
    rows = [r for r in report["figures"] if r["workload"] == overall(report) and r["context"] != "all"]
    return [[row["context"], *cells(report, row)[1:6]] for row in rows]


def check_lines(report: Report) -> list[str]:
    """What the losslessness check found, arm by arm, with both logits of every difference; then what was left out."""
    lines = []
    for arm in report["arms"][1:]:
        calls = plural(arm["checked_calls"], "call")
        if arm["lossless"] is None:
            lines.append(f"{arm['name']}: not checked, so no speed-up is shown.")
        elif arm["lossless"]:
            ties = f", {arm['near_ties']} of them up to a near-tie" if arm["near_ties"] else ""
            lines.append(f"{arm['name']}: the ids of plain decoding, token for token, on {calls}{ties}.")
        else:
            lines.append(f"{arm['name']}: NOT lossless; no speed-up is shown ({calls} checked).")
        lines += [f"{arm['name']}: {_difference(one)}" for one in arm["differences"][:5]]
    loops = rows_of(report, workload=overall(report))[0]["loops"]
    if loops:
        fate = "counted in" if report["settings"]["include_loops"] else "left out of every figure above"
        lines.append(f"{plural(loops, 'call')} ended in degenerate repetition, {fate}.")
    lines += [f"skipped {one['call']}: {one['reason']}" for one in report["skipped"]]
    return lines


def interval(estimate: dict[str, float | None] | None, unit: str = "") -> str:
    """1.74 [1.62, 1.86]"""
    if estimate is None:
        return "-"
    text = number(estimate["value"], unit=unit)
    low, high = estimate["low"], estimate["high"]
    return text if low is None or high is None or low == high else f"{text} [{low:.2f}, {high:.2f}]"


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """A figure with its digits, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def plural(count: int, noun: str) -> str:
    """1 call, 2 calls"""
    return f"{count} {noun}{'s' * (count != 1)}"


def _difference(one: dict[str, Any]) -> str:
    where = f"call {one['call']} leaves plain decoding at output token {one['position']}"
    if one["gap"] is None:
        return f"{where}: one output ends there."
    kind = "a near-tie" if one["near_tie"] else "a difference"
    return (
        f"{where}, {kind}: token {one['plain_token']} (logit {one['plain_logit']:.6f}) became {one['arm_token']} "
        f"(logit {one['arm_logit']:.6f}), gap {one['gap']:.2e}."
    )


def markdown_table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
