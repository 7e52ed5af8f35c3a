"""The pairwise head against its loops; its scores as logits."""

from __future__ import annotations

import pytest
import torch

from dlite.nn import naive_pairwise
from dlite.nn.pairwise import Pairwise, spread
from tests.nn.support import randomise


def made(candidates: int) -> Pairwise:
    return randomise(Pairwise(7, 5, vocab_out=11, vocab_prev=13, candidates=candidates).double())


@pytest.mark.parametrize("candidates", [1, 3, 11])
def test_values_and_gradients_equal_the_loops(candidates: int) -> None:
    head = made(candidates)
    logits = torch.randn(3, 4, 11, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    previous = torch.randint(13, (3, 4))
    rows, fast = head(logits, hidden, previous)
    slow = [naive_pairwise.pairwise(head, logits[n], hidden[n], previous[n].tolist()) for n in range(3)]
    assert [[set(r) for r in block] for block in rows.tolist()] == [[set(s) for s in block] for block in slow]
    ordered = torch.stack(
        [torch.stack([slow[n][i][b] for b in rows[n, i].tolist()]) for n in range(3) for i in range(4)]
    )
    ordered = ordered.view_as(fast)
    torch.testing.assert_close(fast, ordered, rtol=1e-9, atol=1e-9)
    wanted, pull = [logits, hidden, *head.parameters()], torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(ordered, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_slot_by_slot_equals_teacher_forcing() -> None:
    head = made(3)
    logits, hidden, previous = torch.randn(3, 4, 11).double(), torch.randn(3, 4, 7).double(), torch.randint(13, (3, 4))
    rows, scores = head(logits, hidden, previous)
    for i in range(4):
        best, own = head.best(logits[:, i])
        assert torch.equal(best, rows[:, i])
        torch.testing.assert_close(head.score(best, own, head.hidden_proj(hidden[:, i]), previous[:, i]), scores[:, i])


def test_spread_scores_leave_the_other_tokens_no_chance() -> None:
    rows, scores = torch.tensor([[4, 0], [1, 2]]), torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    low = -torch.inf
    assert spread(rows, scores, 5).tolist() == [[-2.0, low, low, low, 1.0], [low, 0.5, 3.0, low, low]]
