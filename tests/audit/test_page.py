from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dlite.audit.page import check_lines, html, write_html
from dlite.audit.report import Judging, read_json, server_report, write_json
from dlite.audit.server import Count
from dlite.traces.skipped import Skipped

Report = dict[str, Any]


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return html(report)


class Balanced(HTMLParser):
    """Fails on tags that do not close."""

    void = ("meta", "link", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def whole(page: str) -> bool:
    parser = Balanced()
    parser.feed(page)
    return not parser.open and not re.search(r"<script|<link|@import|<img|url\(http", page)


def test_the_page_is_whole_and_stands_alone(page: str) -> None:
    assert whole(page)
    assert page.count("<svg ") == 8
    assert "prefers-color-scheme: dark" in page
    assert "--note &lt;b&gt;&amp;" in page
    assert "The template &lt;b&gt;minds" in page
    assert "line &lt;7&gt;" in page


def test_the_page_comes_from_the_file_alone(report: Report, page: str, tmp_path: Path) -> None:
    write_json(report, tmp_path / "r.json")
    write_html(read_json(tmp_path / "r.json"), tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page


def test_every_css_variable_is_defined(page: str) -> None:
    defined = set(re.findall(r"(--[\w-]+):", page))
    assert set(re.findall(r"var\((--[\w-]+)", page)) <= defined


def test_accepted_drafts_are_marked_in_the_answers(report: Report, page: str) -> None:
    accepted = sum(position > 0 for sample in report["samples"] for _, position in sample["tokens"])
    assert page.count("<b>") == accepted > 0


def test_no_speedup_on_the_page_after_a_failed_check(report: Report) -> None:
    failed = copy.deepcopy(report)
    for arm in failed["arms"][1:]:
        arm["lossless"] = False
    for row in failed["figures"]:
        if row["arm"] != "plain":
            row["speedup"] = row["call_ratio"] = None
    made = html(failed)
    assert "Speed-up not shown" in made
    assert '<p class="big">' not in made
    assert any("NOT the ids of plain decoding" in line for line in check_lines(failed))


def test_a_servers_page_and_one_of_plain_alone(report: Report) -> None:
    made = html(
        server_report("log", [Count(9, 50, 200, 80, (50, 30)), Count(2000, 50, 200, 20, (20, 0))], Skipped(), Judging())
    )
    assert whole(made)
    assert "From a server" in made
    plain = copy.deepcopy(report)
    plain["arms"], plain["spans"], plain["break_even"], plain["samples"] = plain["arms"][:1], [], [], []
    for key in ("figures", "memory", "reuse", "trials"):
        plain[key] = [row for row in plain[key] if row["arm"] == "plain"]
    assert whole(html(plain))
    assert whole(html({**plain, "figures": []}))
