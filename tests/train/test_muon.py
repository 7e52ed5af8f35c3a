"""Muon's updates are close to orthogonal, whatever the shape and the size of the gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dlite.train.muon import Muon, orthogonal
from tests.train.support import STABLE, losses, recipe, run


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (1, 6)])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_orthogonal_keeps_the_singular_directions_and_evens_out_the_values(
    shape: tuple[int, int], scale: float
) -> None:
    """U^T X V is diagonal; values a hundredfold apart come out within the range of three polynomials."""
    u, s, v = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(1)), full_matrices=False)
    matrix = u @ torch.diag(torch.logspace(-2, 0, len(s))) @ v
    found = orthogonal(scale * matrix)
    turned = u.T @ found @ v.T
    assert found.shape == shape
    torch.testing.assert_close(turned, torch.diag(turned.diag()), rtol=0, atol=1e-3)
    assert turned.diag().min() > 0.2
    assert turned.diag().max() < 2.7


def test_one_step_by_hand() -> None:
    """Nesterov momentum, then an orthogonal step of the rate times the root of rows over columns where that is above 1."""
    weight = torch.nn.Parameter(torch.zeros(8, 2))
    first, second = torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(0))
    optimizer = Muon([weight], lr=0.1, momentum=0.9)
    average = torch.zeros(8, 2)
    wanted = torch.zeros(8, 2)
    for gradient in (first, second):
        weight.grad = gradient.clone()
        optimizer.step()
        average = 0.9 * average + 0.1 * gradient
        wanted = wanted - 0.1 * 2 * orthogonal(0.1 * gradient + 0.9 * average)
    torch.testing.assert_close(weight.data, wanted, rtol=1e-4, atol=1e-5)


def test_a_matrix_without_gradient_is_left_alone() -> None:
    weight = torch.nn.Parameter(torch.ones(3, 3))
    Muon([weight], lr=0.1).step()
    assert torch.equal(weight.data, torch.ones(3, 3))


@pytest.mark.parametrize("kind", ["medusa", "lstm", "dlite"])
def test_muon_trains_networks_of_any_make_up(kind: str, tmp_path: Path) -> None:
    """Medusa's heads are matrices of the backbone's kind only: nothing is left for AdamW."""
    run(recipe([{**STABLE, "losses": {"ce": 1.0}, "steps": 3}], drafter={"kind": kind}, optimizer="muon"), tmp_path)
    assert len(losses(tmp_path)) == 3
    assert all(row["lr"] > 0 for row in losses(tmp_path)[:-1])
