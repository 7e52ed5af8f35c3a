"""Running medians as a curve."""

from __future__ import annotations

import pytest

from dlite.engine.costs import WINDOW, Costs, Curve, span


def test_a_curve_starts_from_the_prior_and_follows_what_was_measured() -> None:
    curve = Curve(slope=0.1)
    assert curve.at(3) == 0.0
    curve.note(5, 3.0)
    assert [curve.at(n) for n in (0, 5, 10)] == pytest.approx([2.0, 3.0, 4.0])
    curve.note(0, 1.0)
    assert curve.at(0) == 1.0
    assert curve.at(5) == pytest.approx(3.0)
    assert 1.0 < curve.at(2) < 3.0
    assert curve.at(10) == pytest.approx(4.0)


def test_one_slow_pass_does_not_matter_and_old_ones_are_forgotten() -> None:
    curve = Curve()
    for seconds in (1.0, 1.0, 90.0):
        curve.note(0, seconds)
    assert curve.at(0) == 1.0
    for _ in range(WINDOW):
        curve.note(0, 2.0)
    assert curve.at(0) == 2.0


def test_batches_and_context_lengths_are_kept_apart_the_nearest_stands_in() -> None:
    costs = Costs()
    assert (costs.verify(1, 100, 0), costs.draft(1, "", 3)) == (0.0, 0.0)
    costs.note_verify(1, 100, 0, 1.0)
    costs.note_verify(1, 5000, 0, 3.0)
    costs.note_verify(8, 100, 0, 2.0)
    assert [costs.verify(*key) for key in ((1, 200, 0), (1, 3000, 0), (7, 5000, 0))] == [1.0, 3.0, 2.0]
    costs.note_draft(1, "suffix", 4, 0.1)
    assert costs.draft(1, "dlite", 4) == costs.draft(1, "suffix", 0) == 0.0
    assert costs.draft(3, "suffix", 4) == pytest.approx(0.1)


def test_spans_double() -> None:
    assert [span(n) for n in (1, 512, 513, 1024, 1025, 2049, 8192)] == [0, 0, 1, 1, 2, 3, 4]
