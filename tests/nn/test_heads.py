"""The recurrent head against its loops and its own steps; the start from the target's output matrix."""

from __future__ import annotations

import pytest
import torch

from dlite.nn import naive
from dlite.nn.heads import LowRankRNN, svd_start, truncated_svd
from tests.nn.support import randomise


def made(rank: int = 5, vocab_out: int = 11, vocab_prev: int = 13) -> LowRankRNN:
    return randomise(LowRankRNN(7, rank, vocab_out, vocab_prev).double())


def test_values_and_gradients_equal_the_loops() -> None:
    head = made()
    hidden = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    previous = torch.randint(13, (3, 4))
    fast = head(hidden, previous)
    slow = torch.stack([torch.stack(naive.head(head, hidden[n], previous[n].tolist())) for n in range(3)])
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    wanted, pull = [hidden, *head.parameters()], torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_stepping_equals_teacher_forcing() -> None:
    head = made()
    hidden, previous = torch.randn(3, 4, 7).double(), torch.randint(13, (3, 4))
    whole, merged, state = head(hidden, previous), head.hidden_part(hidden), head.initial_state(3)
    for i in range(4):
        state = head.step(state, previous[:, i])
        torch.testing.assert_close(head.output_proj(head.merge(state, merged[:, i])), whole[:, i])


def test_a_primed_state_counts() -> None:
    head = made()
    hidden, previous = torch.randn(2, 3, 7).double(), torch.randint(13, (2, 3))
    primed = head.step(head.initial_state(2), torch.tensor([1, 2]))
    longer = head(torch.cat([hidden[:, :1], hidden], 1), torch.cat([torch.tensor([[1], [2]]), previous], 1))
    torch.testing.assert_close(head(hidden, previous, primed), longer[:, 1:])


@pytest.mark.parametrize("rank", [7, 10])
def test_svd_start_with_a_full_rank_speaks_the_targets_language(rank: int) -> None:
    """Silence the state part: what is left is lm_head(norm scale * h), and h counts as already normalised."""
    head = made(rank=rank)
    lm_head, scale, hidden = torch.randn(11, 7), torch.rand(7) + 0.5, torch.randn(2, 3, 7).double()
    svd_start(head, lm_head, scale)
    found = head.output_proj(head.hidden_part(hidden))
    torch.testing.assert_close(found, hidden @ (lm_head * scale).double().T, rtol=1e-4, atol=1e-4)


def test_svd_start_with_a_smaller_rank_is_the_best_of_that_rank() -> None:
    head = made(rank=3)
    lm_head, scale = torch.randn(11, 7), torch.rand(7) + 0.5
    svd_start(head, lm_head, scale)
    product = head.output_proj.weight @ head.state_hidden_mlp.weight[:, 3:]
    left_out = torch.linalg.svdvals((lm_head * scale).double())[3:]
    error = torch.linalg.matrix_norm(product - (lm_head * scale).double())
    torch.testing.assert_close(error, left_out.square().sum().sqrt(), rtol=1e-4, atol=1e-5)


def test_svd_start_scales_the_token_table_to_one() -> None:
    head = made(rank=5)
    svd_start(head, torch.randn(11, 7), torch.ones(7), torch.randn(13, 7) * 50)
    assert head.prev_token_embedding.weight.square().mean().sqrt().item() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("rank", [2, 6, 9])
def test_truncated_svd_multiplies_back(rank: int) -> None:
    matrix = torch.randn(20, 6)
    left, singular, right = truncated_svd(matrix, rank)
    assert (left.shape, singular.shape, right.shape) == ((20, rank), (rank,), (rank, 6))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    best = u[:, :rank] * s[:rank] @ v[:rank]
    torch.testing.assert_close(left * singular @ right, best, rtol=1e-4, atol=1e-4)
