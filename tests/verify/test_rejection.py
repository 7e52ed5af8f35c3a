"""`rejection`: equal to its twin, and exact in law."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from torch import Tensor

from dlite.types import Proposal
from dlite.verify import naive
from dlite.verify.rejection import rejection
from tests.support import CHAINS, Case, cases, cdf, chain_law, chains, enumerate_law, pairs, residual


@given(cases())
def test_batch_equals_naive_rows(case: Case) -> None:
    assert pairs(rejection(case.p, case.draft, case.u)) == [naive.rejection(*row) for row in case.rows()]


def breaks(p: list[list[float]], q: list[list[float]], path: Sequence[int]) -> list[list[float]]:
    """Accept below p/q; draw from whichever residual, or from p after the last draft."""
    ratios = [[p[i][token] / q[i][token]] for i, token in enumerate(path)]
    return [*ratios, [at for a, b in zip(p, q, strict=False) for at in cdf(residual(a, b))] + cdf(p[-1])]


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize(("V", "K"), [(5, 2), (3, 3)])
def test_output_follows_the_target_exactly(kind: str, V: int, K: int) -> None:
    p, q = chains(kind, V, K)
    law, accepted = enumerate_law(rejection, breaks, p, q, certain=kind == "certain")
    torch.testing.assert_close(law, chain_law(p), rtol=0, atol=1e-9)
    assert accepted == pytest.approx(K) if kind == "same" else accepted < K


def test_one_hot_p_is_greedy_verification() -> None:
    """Temperature 0 needs no branch: every coin keeps the agreeing prefix and then says the argmax."""
    p = torch.eye(4)[[2, 1, 3]].expand(50, -1, -1)
    draft = Proposal(torch.tensor([[2, 0]]).expand(50, -1), torch.full((50,), 2), torch.full((50, 2, 4), 0.25))
    u = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    assert set(pairs(rejection(p, draft, u))) == {(1, 1)}


def almost_p() -> tuple[Tensor, Proposal, Tensor]:
    """One draft whose q is a rounding step above p, and the highest coin there is: (p, draft, u)."""
    p = torch.tensor([[[0.3, 0.7, 0.0], [1.0, 0.0, 0.0]]])
    q = p[:, :1].nextafter(torch.tensor([0.3, 1.0, 0.0]))
    return p, Proposal(torch.tensor([[1]]), torch.tensor([1]), q), torch.tensor([[1 - 2.0**-24, 0.5]])


def test_a_residual_lost_to_rounding_falls_back_on_p() -> None:
    """q one ulp above p leaves nothing to draw from; the last token, which p excludes, once came out."""
    p, draft, u = almost_p()
    assert pairs(rejection(p, draft, u)) == [(0, 1)]
