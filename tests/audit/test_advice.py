"""Plain words follow from the figures, and only from them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dlite.audit.advice import advice, warnings

Report = dict[str, Any]
FLAGS = {"good": [("dlite", "--drafter good")]}


def changed(report: Report, **speedup: float | None) -> Report:
    made = copy.deepcopy(report)
    for row in made["figures"]:
        if row["arm"] == "good" and row["speedup"]:
            row["speedup"] = dict(speedup)
        elif row["arm"] == "poor K=2" and row["speedup"]:
            row["speedup"] = {"value": 0.1, "low": 0.1, "high": 0.1}
    return made


@pytest.mark.parametrize(
    ("value", "low", "high", "words", "flags"),
    [
        (1.5, 1.2, 1.8, "Use good: on these 9 calls it decodes 1.50× as fast as plain decoding.", True),
        (1.1, 0.9, 1.3, "Too close to call: good decodes 1.10× as fast as plain decoding, within error.", True),
        (1.1, None, None, "Too close to call", True),
        (0.8, 0.7, 0.9, "Leave speculation off: good, the best arm, decodes at 0.80×", False),
    ],
)
def test_the_headline_minds_its_interval(
    report: Report, value: float, low: Any, high: Any, words: str, flags: bool
) -> None:
    said = advice(changed(report, value=value, low=low, high=high), FLAGS)
    assert said["headline"].startswith(words)
    assert said["flags"] == ([["dlite", "--drafter good"]] if flags else [])


def test_no_arm_that_differs_is_recommended(report: Report) -> None:
    made = copy.deepcopy(report)
    for arm in made["arms"][1:]:
        arm["lossless"] = False
    said = advice(made, FLAGS)
    assert said["headline"].startswith("Do not serve these drafts")
    assert "×" not in " ".join([said["headline"], *said["sentences"]])
    assert sum("not the target's text" in line for line in warnings(made)) == 2


def test_sentences_say_where_it_ends_which_k_and_what_reuse_saves(report: Report) -> None:
    made = changed(report, value=1.5, low=1.2, high=1.8)
    good = made["break_even"][0]
    good["loses_from"] = "1-2K"
    good["paces"] = [{"K": 1, "tau": 1.6, "cost": 1.0}, {"K": 4, "tau": 2.0, "cost": 1.6}]
    said = " ".join(advice(made, FLAGS)["sentences"])
    assert "From a context of 1-2K tokens on it costs more than it gives" in said
    assert "for K = 1 the measured costs predict 1.60×, for K = 4 1.25×. Measure it: -K 1." in said
    assert "Keep prefix caching on: " in said
    good["loses_from"] = "below 1K"
    assert "It costs more than it gives at every length" in " ".join(advice(made, FLAGS)["sentences"])
    good["paces"][0]["tau"] = 1.3  # within a few percent of what was measured
    assert "Measure it" not in " ".join(advice(made, FLAGS)["sentences"])


@pytest.mark.parametrize(
    ("stops", "costs", "words"),
    [
        ([[1, None], [4, None]], (1.0, 1.0), "With up to 8 requests at a time it is predicted to pay: 2.00× at 8."),
        ([[1, None], [4, 2]], (1.0, 4.0), "With 2 or more requests at a time K = 4 is predicted to cost more than it gives; "
         "K = 1 still pays at 8, 1.50×."),
        ([[1, 4], [4, 1]], (2.0, 4.0), "Whatever the number of requests at a time, K = 4 is predicted to cost more than it "
         "gives; at 8 no K pays"),
    ],
)  # fmt: skip
def test_from_how_many_requests_on_it_does_not_pay(report: Report, stops: Any, costs: Any, words: str) -> None:
    made = changed(report, value=1.5, low=1.2, high=1.8)
    paces = [{"K": 1, "tau": 1.5, "cost": costs[0]}, {"K": 4, "tau": 2.0, "cost": costs[1]}]
    made["break_even"][0] |= {"stops": stops, "by_batch": [[1, paces], [8, paces]]}
    assert words in " ".join(advice(made, FLAGS)["sentences"])


def test_plain_decoding_alone_is_advised_too(report: Report) -> None:
    made = copy.deepcopy(report)
    made["arms"], made["spans"], made["break_even"] = made["arms"][:1], [], []
    made["figures"] = [row for row in made["figures"] if row["arm"] == "plain"]
    made["trials"] = [{**t, "copied": [[True, 3], [False, 1]]} for t in made["trials"] if t["arm"] == "plain"]
    said = advice(made, {})
    assert said["headline"].startswith("Without drafts, ")
    assert any("75% of the answers' tokens repeat eight or more tokens of the history" in s for s in said["sentences"])


def test_warnings_for_what_makes_figures_doubtful(report: Report) -> None:
    made = copy.deepcopy(report)
    made["interrupted"] = True
    made["settings"]["include_loops"] = False
    made["answers"] |= {"loops": 2, "cut_by_limit": 5, "cut_by_context": 1, "prompts_cut": 3}
    made["figures"][1]["acceptance"] = [0.99]
    said = warnings(made)
    for words in (
        "Ctrl-C ended the run", "The template <b>minds</b>.", "5 of 9 answers were cut at the limit", "1 of 9 answers ran out",
        "3 of 9 prompts lost their middle", "2 of 9 answers repeat themselves, left out", "good would show tau",
        "99% of first drafts were accepted", "Only 9 calls",
    ):  # fmt: skip
        assert any(words in line for line in said), words


def test_nothing_is_warned_of_without_reason(report: Report) -> None:
    made = copy.deepcopy(report)
    made["reading"]["notes"] = []
    made["answers"] |= {"loops": 0, "cut_by_limit": 0, "cut_by_context": 0, "prompts_cut": 0}
    for row in made["figures"]:
        row["calls"] = 100
    assert warnings(made) == []


def test_a_servers_counts_give_a_price_and_a_k(report: Report) -> None:
    row = {
        **report["figures"][0],
        "arm": "server",
        "tau": {"value": 1.9, "low": None, "high": None},
        "acceptance": [0.6, 0.2, 0.04],
    }
    made = {**report, "source": "server", "figures": [row], "arms": [{"name": "server", "lossless": None}]}
    said = advice(made, {})
    assert said["headline"] == "A round commits 1.90 tokens on this server."
    assert "less than 1.90 plain steps" in said["sentences"][0]
    assert "with K = 2 a round would still commit 1.80 tokens" in said["sentences"][1]
    assert said["flags"] == [["vLLM, in --speculative-config", '"num_speculative_tokens": 2']]
