from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from dlite.audit.page import check_lines, html, write_html
from dlite.audit.report import Judging, read_json, server_report, write_json
from dlite.audit.server import Count
from dlite.audit.strips import words
from dlite.traces.skipped import Skipped
from tests.support import whole

Report = dict[str, Any]


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return html(report)


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
    """Those of the arm that is shown; the others have their strips."""
    shown = [words(sample) for sample in report["samples"]]
    drafted = [text for one in shown for text, kind in one if kind == "model"]
    assert page.count('<b class="model">') == len(drafted) > 0
    assert page.count('<div class="strip">') == 2 * len(shown)
    assert page.count("<details>") == 1


def test_a_hybrid_shows_its_copies(report: Report) -> None:
    made = copy.deepcopy(report)
    for sample in made["samples"]:
        for token in sample["answers"][0]["tokens"]:
            token[2] = "suffix" if token[1] == 1 else token[2]
    made["sources"][0]["source"] = "suffix"
    page = html(made)
    assert '<b class="copy">' in page
    assert "copied from a text" in page
    assert "copied from a text" not in html(report)


def test_several_requests_at_a_time_have_a_grid(report: Report, page: str) -> None:
    assert "From how many requests at a time" not in page
    made = copy.deepcopy(report)
    pace = [[{"K": K, "tau": 2.0, "cost": cost} for K in (1, 4)] for cost in (1.0, 1.6, 4.0)]
    good = made["break_even"][0]
    good |= {"batch_context": 900, "by_batch": [[1, pace[0]], [2, pace[1]], [8, pace[2]]]}
    good["stops"] = [[1, 8], [4, None]]
    drawn = html(made)
    assert whole(drawn)
    assert "at 900 tokens of context" in drawn
    assert "loses from 8 on" in drawn
    assert "pays throughout" in drawn
    assert drawn.count('<td class="loss"') == 2
    assert 'class="gain best" style="--by: 60%">2.00</td>' in drawn
    made["memory"][0]["requests"] = 16
    assert "More than 8 at a time did not fit in memory" in html(made)


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
    plain |= {"arms": plain["arms"][:1], "spans": [], "sources": [], "break_even": [], "samples": []}
    for key in ("figures", "memory", "reuse", "trials"):
        plain[key] = [row for row in plain[key] if row["arm"] == "plain"]
    assert whole(html(plain))
    assert whole(html({**plain, "figures": []}))
