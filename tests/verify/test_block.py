"""`block`: equal to its twin, exact in law, and never behind `rejection`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given

from dlite.verify import naive
from dlite.verify.block import block
from dlite.verify.rejection import rejection
from tests.support import CHAINS, Case, cases, cdf, chain_law, chains, enumerate_law, pairs, residual
from tests.verify.test_rejection import almost_p
from tests.verify.test_rejection import breaks as rejection_breaks


@given(cases())
def test_batch_equals_naive_rows(case: Case) -> None:
    assert pairs(block(case.p, case.draft, case.u)) == [naive.block(*row) for row in case.rows()]


def breaks(p: list[list[float]], q: list[list[float]], path: Sequence[int]) -> list[list[float]]:
    """Prefix i passes below h_i; draw from the residual left by the longest that passed, or from p."""
    K, weight, passes = len(path), 1.0, []
    draws = cdf(residual(p[0], q[0])) + cdf(p[K])
    for i, token in enumerate(path, start=1):
        weight = min(1.0, weight * p[i - 1][token] / q[i - 1][token])
        if i == K:
            passes.append([weight])
            continue
        left = residual([weight * value for value in p[i]], q[i])
        draws += cdf(left)
        passes.append([sum(left) / (sum(left) + 1 - weight)] if sum(left) or weight < 1 else [])
    return [*passes, draws]


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize(("V", "K"), [(5, 2), (3, 3)])
def test_output_follows_the_target_exactly_and_block_accepts_no_less(kind: str, V: int, K: int) -> None:
    p, q = chains(kind, V, K)
    law, accepted = enumerate_law(block, breaks, p, q, certain=kind == "certain")
    torch.testing.assert_close(law, chain_law(p), rtol=0, atol=1e-9)
    _, one_by_one = enumerate_law(rejection, rejection_breaks, p, q, certain=kind == "certain")
    assert accepted >= one_by_one - 1e-12
    assert kind != "dense" or accepted > one_by_one + 1e-3


def test_a_residual_lost_to_rounding_falls_back_on_p() -> None:
    """q one ulp above p leaves nothing to draw from; the last token, which p excludes, once came out."""
    p, draft, u = almost_p()
    assert pairs(block(p, draft, u)) == [(0, 1)]
