from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from dlite.bench.report import Report, build, rows_of
from dlite.bench.run import BenchResult
from dlite.bench.tables import HEADER, cells, check_lines, context_rows, interval, markdown, show


@pytest.fixture
def report(result: BenchResult) -> Report:
    return json.loads(json.dumps(build(result, argv=["dlite", "bench"], conditions={"dtype": "fp32"})))  # type: ignore[no-any-return]


@pytest.fixture
def failed(failed_result: BenchResult) -> Report:
    return json.loads(json.dumps(build(failed_result, argv=["dlite", "bench"])))  # type: ignore[no-any-return]


def printed(report: Report, width: int) -> str:
    out = StringIO()
    show(report, Console(file=out, width=width))
    return out.getvalue()


def test_markdown_has_every_row_and_its_conditions(report: Report) -> None:
    text = markdown(report)
    assert sum(line.startswith(("| short", "| long", "| all")) for line in text.splitlines()) == 9
    assert all(word in text for word in ("greedy", "dtype fp32", "torch", "seed 3", "By context length", "| 1-2K |"))
    assert "guesser: the ids of plain decoding, token for token, on 6 calls." in text


def test_no_table_shows_a_speedup_after_a_failed_check(failed: Report) -> None:
    for text in (markdown(failed), printed(failed, 200)):
        assert "not shown: losslessness check failed" in " ".join(text.split())
        assert "guesser: NOT lossless" in text
    for row in rows_of(failed):
        if row["arm"] == "guesser":
            line = dict(zip(HEADER, cells(failed, row), strict=True))
            assert line["end-to-end"] == line["tokens/s"] == "-"
            assert "x" not in line["decode speed-up [95%]"]
    assert "a difference: token" in check_lines(failed)[1]
    assert "(logit " in check_lines(failed)[1]


def test_a_terminal_shows_whole_lines(report: Report) -> None:
    for width in (80, 120):
        text = printed(report, width)
        assert all(len(line) <= width for line in text.splitlines())
        assert "…" not in text
        assert interval(report["figures"][-1]["tau"]) in text
    assert "verify" in printed(report, 120)
    assert "verify" not in printed(report, 80)


def test_near_ties_loops_and_skips_are_told(report: Report) -> None:
    report["arms"][2]["near_ties"] = 1
    report["arms"][2]["differences"] = [
        {"call": "c", "position": 4, "plain_token": 1, "arm_token": 2, "plain_logit": 0.5, "arm_logit": 0.49999,
         "gap": 1e-5, "near_tie": True},
        {"call": "d", "position": 9, "plain_token": 1, "arm_token": None, "plain_logit": None, "arm_logit": None,
         "gap": None, "near_tie": False},
    ]  # fmt: skip
    report["skipped"] = [{"call": "e", "reason": "the prompt has 9 tokens."}]
    for row in report["figures"]:
        row["loops"] = 1
    lines = check_lines(report)
    assert "6 calls, 1 of them up to a near-tie" in lines[1]
    assert "a near-tie: token 1 (logit 0.500000) became 2 (logit 0.499990), gap 1.00e-05" in lines[2]
    assert "one output ends there" in lines[3]
    assert lines[4].startswith("1 call ended in degenerate repetition, left out")
    assert lines[5] == "skipped e: the prompt has 9 tokens."
    report["settings"]["include_loops"] = True
    assert "counted in" in check_lines(report)[4]


def test_context_rows_cover_all_calls(report: Report) -> None:
    assert [row[:3] for row in context_rows(report)][::3] == [["0-1K", "plain", "4"], ["1-2K", "plain", "2"]]


def test_intervals_as_text() -> None:
    assert interval(None) == "-"
    assert interval({"value": 1.5, "low": None, "high": None}) == "1.50"
    assert interval({"value": 1.0, "low": 1.0, "high": 1.0}, "x") == "1.00x"
    assert interval({"value": 1.5, "low": 1.25, "high": 2.0}, "x") == "1.50x [1.25, 2.00]"
