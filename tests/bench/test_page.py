from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from dlite.bench.page import headline, html, write_html
from dlite.bench.report import Report, build, read_json, write_json
from dlite.bench.run import BenchResult
from tests.support import whole


@pytest.fixture(scope="module")
def report(result: BenchResult) -> Report:
    return build(result, argv=["dlite", "bench", "--note", "<b>&"], conditions={"drafter": "<script>"})


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return html(report)


def test_the_page_is_whole_and_stands_alone(page: str) -> None:
    assert whole(page)
    assert page.count("<svg ") == 4
    assert "prefers-color-scheme: dark" in page
    assert "&lt;script&gt;" in page
    assert "--note &lt;b&gt;&amp;" in page


def test_the_page_comes_from_the_file_alone(report: Report, page: str, tmp_path: Path) -> None:
    write_json(report, tmp_path / "r.json")
    write_html(read_json(tmp_path / "r.json"), tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page


def test_every_css_variable_is_defined(page: str) -> None:
    defined = set(re.findall(r"(--[\w-]+):", page))
    assert set(re.findall(r"var\((--[\w-]+)", page)) <= defined


def test_no_speedup_on_the_page_after_a_failed_check(failed_result: BenchResult) -> None:
    page = html(build(failed_result, argv=[]))
    assert headline(build(failed_result, argv=[])).startswith("No speed-up is shown")
    assert "Speed-up not shown: losslessness check failed" in page
    assert '<p class="big">' not in page


def test_the_headline_minds_its_interval(report: Report) -> None:
    changed = copy.deepcopy(report)
    best = changed["figures"][-1]
    for row in changed["figures"]:
        row["speedup"] = None
    for row in changed["figures"]:
        if row["context"] == "all" and row["arm"] == "guesser":
            best = row
    for value, low, high, says in (
        (1.5, 1.2, 1.8, "guesser decodes 1.50× as fast as plain decoding, committing"),
        (0.5, 0.4, 0.6, "guesser decodes at 0.50× the pace of plain decoding, committing"),
        (1.05, 0.9, 1.2, "guesser, the best arm, is within error of plain decoding at 1.05×"),
        (1.05, None, None, "guesser decodes 1.05×"),
    ):
        best["speedup"] = {"value": value, "low": low, "high": high}
        assert headline(changed).startswith(says)
