from __future__ import annotations

import copy
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from dlite.audit.plots import arm_colors, pictures, size

Report = dict[str, Any]


@pytest.fixture(scope="module")
def drawn(report: Report) -> dict[str, str]:
    return pictures(report)


def test_pictures_are_svg_in_the_pages_colours(drawn: dict[str, str]) -> None:
    assert all(drawn.values()), [name for name, svg in drawn.items() if not svg]
    for svg in drawn.values():
        root = ElementTree.fromstring(svg)
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        colors = set(re.findall(r"(?:fill|stroke): (#\w+|var\(--[\w-]+\))", svg))
        assert {c for c in colors if c.startswith("#")} <= {"#000000"}, colors
    assert "var(--part-prefill)" in drawn["time"]
    assert "var(--arm-1)" in drawn["contexts"]


def test_ids_are_unique_over_all_pictures(drawn: dict[str, str]) -> None:
    ids = re.findall(r'\bid="([^"]+)"', "".join(drawn.values()))
    assert len(ids) == len(set(ids))


def test_the_same_picture_again(report: Report, drawn: dict[str, str]) -> None:
    assert pictures(report) == drawn


def test_a_failed_arm_has_no_bar_tick_or_pace(report: Report, drawn: dict[str, str]) -> None:
    failed = copy.deepcopy(report)
    failed["arms"][1]["lossless"] = False
    failed["break_even"] = [one for one in failed["break_even"] if one["arm"] != "good"]
    for row in failed["figures"]:
        if row["arm"] == "good":
            row["speedup"] = None
    after = pictures(failed)
    assert ">good<" in drawn["time"]
    assert ">good<" not in after["time"]
    for name in ("contexts", "evens"):
        assert after[name].count("var(--arm-0)") < drawn[name].count("var(--arm-0)")


def test_plain_alone_draws_times_and_memory_only(report: Report) -> None:
    plain = copy.deepcopy(report)
    plain["arms"], plain["spans"], plain["break_even"] = plain["arms"][:1], [], []
    for key in ("figures", "memory", "reuse"):
        plain[key] = [row for row in plain[key] if row["arm"] == "plain"]
    assert [name for name, svg in pictures(plain).items() if svg] == ["time", "memory"]
    assert arm_colors(plain) == {}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (27_648, "27.6 KB"),
        (377_000_000, "377 MB"),
        (2.5e9, "2.5 GB"),
        (9e16, "90000 TB"),
    ],
)
def test_sizes(count: float, text: str) -> None:
    assert size(count) == text
