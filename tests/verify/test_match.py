"""`match`: equal to its twin, and exact in law."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from torch import Tensor

from dlite.sampling import draw
from dlite.types import Proposal, Verdict
from dlite.verify import naive
from dlite.verify.match import match
from tests.support import CHAINS, Case, cases, cdf, chain_law, chains, enumerate_law, pairs


@given(cases())
def test_batch_equals_naive_rows(case: Case) -> None:
    own = draw(case.p, case.u)
    fast = match(own, case.draft)
    assert pairs(fast) == [naive.match(own[b].tolist(), drafts) for b, (_, drafts, _, _) in enumerate(case.rows())]


def test_a_row_keeps_its_whole_agreeing_prefix_and_no_more() -> None:
    own = torch.tensor([[3, 1, 4, 1], [3, 1, 4, 1], [3, 1, 4, 1]])
    drafts = torch.tensor([[3, 1, 4], [3, 0, 4], [3, 1, 4]])
    assert pairs(match(own, Proposal(drafts, torch.tensor([3, 3, 1])))) == [(3, 1), (1, 1), (1, 1)]


def own_choice(p: Tensor, draft: Proposal, u: Tensor) -> Verdict:
    """The rule as the engine uses it: one independent draw from p a position."""
    return match(draw(p, u), draft)


def breaks(p: list[list[float]], q: list[list[float]], path: Sequence[int]) -> list[list[float]]:
    """Every coin draws from p at its position."""
    return [cdf(law) for law in p]


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize(("V", "K"), [(5, 2), (3, 3)])
def test_output_follows_the_target_exactly(kind: str, V: int, K: int) -> None:
    p, q = chains(kind, V, K)
    law, _ = enumerate_law(own_choice, breaks, p, q, certain=kind == "certain")
    torch.testing.assert_close(law, chain_law(p), rtol=0, atol=1e-9)
