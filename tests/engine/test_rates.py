"""What past rounds say of the next one."""

from __future__ import annotations

import pytest

from dlite.engine.rates import CHANCE, FADE, WEIGHT, Rates


def test_only_drafts_that_verification_reached_are_counted() -> None:
    rates = Rates()
    rates.note(4, 1, None)  # the first stayed, the second was rejected, the others were never judged
    assert (rates.tried, rates.kept) == ([1.0, 1.0], [1.0, 0.0])
    rates.note(3, 3, None)
    assert rates.tried == [FADE + 1, FADE + 1, 1.0]
    assert rates.kept == [FADE + 1, 1.0, 1.0]
    assert rates.chance(1) == pytest.approx((1 + WEIGHT * CHANCE) / (FADE + 1 + WEIGHT))
    assert rates.chance(9) == CHANCE


def test_a_new_request_begins_where_others_are() -> None:
    overall = Rates()
    for _ in range(100):
        overall.note(2, 2, [0.5, 0.5])
    fresh = Rates(overall)
    assert fresh.chance(0) == overall.chance(0) > 0.85
    assert fresh.trust() == overall.trust() > 1.5


def test_a_confidence_that_promises_twice_what_holds_is_halved() -> None:
    rates = Rates()
    for turn in range(400):
        rates.note(1, turn % 5 < 2, [0.8])
    assert rates.trust() == pytest.approx(0.5, abs=0.15)
    for _ in range(200):
        rates.note(0, 0, None)  # without drafts the doubt fades
    assert rates.trust() == pytest.approx(1.0, abs=0.01)
