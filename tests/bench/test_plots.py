from __future__ import annotations

import copy
import re
from xml.etree import ElementTree

import pytest

from dlite.bench.plots import arm_colors, pictures
from dlite.bench.report import Report, build
from dlite.bench.run import BenchResult


@pytest.fixture(scope="module")
def report(result: BenchResult) -> Report:
    return build(result, argv=[])


@pytest.fixture(scope="module")
def drawn(report: Report) -> dict[str, str]:
    return pictures(report)


def test_pictures_are_svg_in_the_pages_colours(drawn: dict[str, str]) -> None:
    assert list(drawn) == ["workloads", "positions", "time", "contexts"]
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        colors = set(re.findall(r"(?:fill|stroke): (#\w+|var\(--[\w-]+\))", svg))
        assert {c for c in colors if c.startswith("#")} <= {"#000000"}, colors
        assert "var(--arm-1)" in svg or "var(--part-verify)" in svg
    assert "guesser" in drawn["time"]


def test_ids_are_unique_over_all_pictures(drawn: dict[str, str]) -> None:
    ids = re.findall(r'\bid="([^"]+)"', "".join(drawn.values()))
    assert len(ids) == len(set(ids))


def test_a_failed_arm_has_no_bar_tick_or_pace(report: Report, drawn: dict[str, str]) -> None:
    failed = copy.deepcopy(report)
    failed["arms"][2]["lossless"] = False
    for row in failed["figures"]:
        if row["arm"] == "guesser":
            row["speedup"] = None
    before, after = drawn, pictures(failed)
    assert "guesser" in before["time"]
    assert "guesser" not in after["time"]
    assert after["workloads"].count("var(--arm-1)") < before["workloads"].count("var(--arm-1)")
    assert after["contexts"].count("var(--arm-1)") < before["contexts"].count("var(--arm-1)")


def test_a_run_of_plain_alone_draws_only_its_time(report: Report) -> None:
    plain = copy.deepcopy(report)
    plain["arms"] = plain["arms"][:1]
    plain["figures"] = [row for row in plain["figures"] if row["arm"] == "plain"]
    assert [name for name, svg in pictures(plain).items() if svg] == ["time"]
    assert arm_colors(plain) == {}
