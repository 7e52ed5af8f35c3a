"""Temperatures that are found again in rounds made with them, and twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dlite.engine import naive
from dlite.engine.calibration import calibration_error, fit, log_loss, survival

TRUE = (2.5, 0.5, 1.0, 1.7)


def rounds(M: int, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(logits [M,K], verified [M], accepted [M]): draft i is kept with the chance sigmoid(z_i / TRUE_i)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1 + 2 * torch.randn(M, len(TRUE), generator=generator)
    verified = torch.randint(0, len(TRUE) + 1, (M,), generator=generator)
    kept = torch.rand(M, len(TRUE), generator=generator) < (logits / torch.tensor(TRUE)).sigmoid()
    return logits, verified, torch.minimum(kept.long().cumprod(1).sum(1), verified)


def test_a_known_miscalibration_is_found_and_taken_back() -> None:
    found = fit(*rounds(20_000))
    assert found == pytest.approx(TRUE, rel=0.2)
    logits, verified, accepted = rounds(20_000, seed=1)
    before = calibration_error(survival(logits), verified, accepted)
    after = calibration_error(survival(logits, found), verified, accepted)
    assert before[0] > 0.03
    assert max(after) < 0.015


def test_positions_that_no_round_reached_stay_as_they_are() -> None:
    logits, verified, accepted = rounds(200)
    assert fit(logits, verified.clamp(max=2), accepted.clamp(max=2))[2:] == (1.0, 1.0)
    assert calibration_error(survival(logits), verified * 0, accepted * 0) == [0.0] * 4


def test_no_temperature_nearby_is_better_by_the_twin() -> None:
    """Each position's own, given those before it; and the loss is the twin's."""
    logits, verified, accepted = rounds(300)
    found = fit(logits, verified, accepted)
    pairs = list(zip(verified.tolist(), accepted.tolist(), strict=True))
    for i in range(1, 5):
        best = naive.log_loss(logits.tolist(), found[:i], pairs)
        real = verified >= i
        fast = log_loss(survival(logits.double(), found)[real, i - 1], (accepted >= i)[real].double())
        assert float(fast) == pytest.approx(best, abs=1e-9)
        for factor in (0.9, 0.99, 1.01, 1.1):
            other = (*found[: i - 1], found[i - 1] * factor)
            assert naive.log_loss(logits.tolist(), other, pairs) >= best - 1e-6


def test_the_error_is_the_twins() -> None:
    logits, verified, accepted = rounds(101)
    chance = survival(logits.double())
    for i, error in enumerate(calibration_error(chance, verified, accepted)):
        real = verified > i
        hits = (accepted > i)[real].tolist()
        assert error == pytest.approx(naive.calibration_error(chance[real, i].tolist(), hits), abs=1e-9)
