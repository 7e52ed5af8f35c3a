"""Who gave each token, as rows of coloured cells: copied from a text, drafted by a model, or the target's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dlite.audit.marks import TARGET

Report = dict[str, Any]
Cell = tuple[str, int]  # kind, how many tokens wide
KINDS = {"copy": "copied from a text", "model": "drafted by a model", "target": "the target's own"}
COPYING = ("ngram", "suffix")  # drafters that know nothing but text
ROW, ROWS = 128, 4  # tokens in a row, rows of an answer, at most


def kind_of(source: str) -> str:
    """One of ``KINDS``."""
    return TARGET if source == TARGET else "copy" if source in COPYING else "model"


def shares(report: Report) -> list[dict[str, Any]]:
    """For each drafting arm its tokens by kind as [(kind, share)]."""
    rows = []
    for arm in dict.fromkeys(row["arm"] for row in report["sources"]):
        mine = [row for row in report["sources"] if row["arm"] == arm]
        parts = [(kind, sum(row["share"] for row in mine if kind_of(row["source"]) == kind)) for kind in KINDS]
        rows.append({"arm": arm, "parts": [(kind, share) for kind, share in parts if share]})
    return rows


def strips(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """For each arm of a sample: rows of cells, and how many of its tokens were accepted drafts."""
    width = min(ROW, max(len(answer["tokens"]) for answer in sample["answers"]))
    return [
        {
            "arm": answer["arm"],
            "rows": cells([kind_of(source) for *_, source in answer["tokens"]], width),
            "drafts": sum(position > 0 for _, position, _ in answer["tokens"]),
            "tokens": len(answer["tokens"]),
        }
        for answer in sample["answers"]
    ]


def cells(kinds: Sequence[str], width: int) -> list[list[Cell]]:
    """Runs of one kind in rows of ``width`` tokens, the last row filled with "none"; at most ``ROWS`` of them."""
    rows = []
    for start in range(0, min(len(kinds), width * ROWS), width or 1):
        part = kinds[start : start + width]
        row = [(kind, sum(1 for _ in run)) for kind, run in groupby(part)]
        rows.append(row + [("none", width - len(part))] * (len(part) < width))
    return rows


def words(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """The text of the arm that is shown, as (text, kind) for each run of one kind."""
    tokens = next(one["tokens"] for one in sample["answers"] if one["arm"] == sample["shown"])
    runs = groupby(tokens, lambda token: kind_of(token[2]))
    return [("".join(text for text, *_ in run), kind) for kind, run in runs]
