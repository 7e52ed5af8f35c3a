from __future__ import annotations

from typing import Any

import pytest

from dlite.audit.strips import ROW, ROWS, cells, kind_of, shares, strips, words

TOKENS = [["a", 0, "target"], [" b", 1, "suffix"], [" c", 2, "suffix"], [" d", 0, "target"], [" e", 1, "dlite"]]


@pytest.mark.parametrize(
    ("source", "kind"),
    [("target", "target"), ("suffix", "copy"), ("ngram", "copy"), ("dlite", "model"), ("my own", "model")],
)
def test_kinds_of_drafters(source: str, kind: str) -> None:
    assert kind_of(source) == kind


def test_cells_are_runs_that_fill_their_row() -> None:
    assert cells(["copy", "copy", "target"], 8) == [[("copy", 2), ("target", 1), ("none", 5)]]
    assert cells(["copy"] * 8, 8) == [[("copy", 8)]]
    assert cells(["copy"] * 9, 8) == [[("copy", 8)], [("copy", 1), ("none", 7)]]
    assert len(cells(["copy"] * (8 * ROWS + 9), 8)) == ROWS
    assert cells([], 0) == []


def test_the_longest_answer_fills_its_row() -> None:
    """Up to a width at which single tokens can still be seen."""
    tokens = [TOKENS[0]] * (ROW + 1)
    answers = [{"arm": "a", "tokens": tokens[:10]}, {"arm": "b", "tokens": tokens[:20]}]
    assert [strip["rows"][0] for strip in strips({"answers": answers})] == [
        [("target", 10), ("none", 10)],
        [("target", 20)],
    ]
    (long,) = strips({"answers": [{"arm": "a", "tokens": tokens}]})
    assert [sum(width for _, width in row) for row in long["rows"]] == [ROW, ROW]


def test_a_sample_has_a_strip_for_every_arm_and_the_text_of_one() -> None:
    sample = {
        "shown": "hybrid",
        "answers": [{"arm": "plainer", "tokens": TOKENS[:1]}, {"arm": "hybrid", "tokens": TOKENS}],
    }
    first, second = strips(sample)
    assert (first["arm"], first["drafts"], first["tokens"]) == ("plainer", 0, 1)
    assert (second["drafts"], second["tokens"]) == (3, 5)
    assert second["rows"][0][:4] == [("target", 1), ("copy", 2), ("target", 1), ("model", 1)]
    assert words(sample) == [("a", "target"), (" b c", "copy"), (" d", "target"), (" e", "model")]


def test_shares_are_those_of_the_report(report: dict[str, Any]) -> None:
    rows = shares(report)
    assert [row["arm"] for row in rows] == ["good", "poor K=2"]
    for row in rows:
        assert [kind for kind, _ in row["parts"]] == ["model", "target"]
        assert sum(share for _, share in row["parts"]) == pytest.approx(1)
