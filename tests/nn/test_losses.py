"""Each loss against its loops, values and gradients, on odd sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlite.nn import naive
from dlite.nn.losses import (
    LossSum,
    acceptance_entropy,
    candidate_entropy,
    cross_entropy,
    forward_kl,
    l1_distance,
    position_weights,
)

Pair = tuple[Callable[..., LossSum], Callable[..., Tensor]]
PAIRS: dict[str, Pair] = {
    "ce": (cross_entropy, naive.cross_entropy),
    "kl": (forward_kl, naive.forward_kl),
    "l1": (l1_distance, naive.l1_distance),
}


def made(name: str, M: int = 5, V: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [M,V], what they are compared with, and weights [M] with a zero among them."""
    torch.manual_seed(0)
    logits, weights = torch.randn(M, V, requires_grad=True), torch.rand(M) * torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])
    return logits, torch.randint(V, (M,)) if name == "ce" else 2 * torch.randn(M, V), weights


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_gradients_equal_the_loops(name: str) -> None:
    fast, slow = PAIRS[name]
    logits, other, weights = made(name)
    exact = logits.detach().double().requires_grad_()
    found = fast(logits, other, weights)
    rows = zip(exact, other.tolist() if name == "ce" else other.double(), weights, strict=True)
    wanted = torch.stack([w * slow(row, y) for row, y, w in rows]).sum()
    assert found.sum.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert found.weight.item() == pytest.approx(sum(weights.tolist()))
    gradients = torch.autograd.grad(found.sum, logits)[0], torch.autograd.grad(wanted, exact)[0]
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_parts_add_up_to_the_whole(name: str) -> None:
    """Sums and weights of uneven pieces give the loss of one batch, where a mean of means would not."""
    fast = PAIRS[name][0]
    logits, other, weights = made(name)
    whole = fast(logits, other, weights)
    parts = [fast(logits[s], other[s], weights[s]) for s in (slice(0, 1), slice(1, 5))]
    joined = torch.stack([p.sum for p in parts]).sum() / torch.stack([p.weight for p in parts]).sum()
    torch.testing.assert_close(joined, whole.sum / whole.weight)


@pytest.mark.parametrize("name", PAIRS)
def test_softmaxes_are_fp32_whatever_comes_in(name: str) -> None:
    fast = PAIRS[name][0]
    logits, other, weights = made(name)
    half = logits.detach().bfloat16()
    assert fast(half, other, weights).sum.dtype == torch.float32
    assert torch.equal(fast(half, other, weights).sum, fast(half.float(), other, weights).sum)


@pytest.mark.parametrize("fast", [forward_kl, l1_distance])
def test_no_loss_where_draft_and_target_agree(fast: Callable[..., LossSum]) -> None:
    logits = made("kl")[0].detach()
    assert fast(logits, logits + 3, torch.ones(5)).sum.item() == pytest.approx(0, abs=1e-5)


def test_l1_distance_has_no_half() -> None:
    far = torch.tensor([[40.0, 0.0]])
    assert l1_distance(far, far.flip(1), torch.ones(1)).sum.item() == pytest.approx(2)


@given(st.integers(1, 7), st.floats(0.5, 9), st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_position_weights_equal_the_loops(K: int, gamma: float, counted: list[int]) -> None:
    fast = position_weights(K, gamma, torch.tensor(counted))
    torch.testing.assert_close(fast, torch.tensor(naive.position_weights(K, gamma, counted)), rtol=1e-5, atol=1e-7)


def test_acceptance_entropy_equals_the_loops_and_leaves_the_draft_alone() -> None:
    logits, other, weights = made("l1")
    confidence = torch.randn(5, requires_grad=True)
    found = acceptance_entropy(confidence, logits, other, weights)
    exact = confidence.detach().double().requires_grad_()
    rows = zip(exact, logits.detach().double(), other.double(), weights, strict=True)
    wanted = torch.stack([w * naive.acceptance_entropy(c, row, y) for c, row, y, w in rows]).sum()
    assert found.sum.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert found.weight.item() == pytest.approx(sum(weights.tolist()))
    gradients = torch.autograd.grad(found.sum, [confidence, logits], allow_unused=True)
    torch.testing.assert_close(gradients[0].double(), torch.autograd.grad(wanted, exact)[0], rtol=1e-4, atol=1e-6)
    assert gradients[1] is None


def test_a_sure_confidence_is_right_where_draft_and_target_agree() -> None:
    same, far = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 60.0]])
    for target, sure in ((same, 40.0), (far, -3.0)):
        right, wrong = (acceptance_entropy(torch.tensor([s]), same, target, torch.ones(1)).sum for s in (sure, -sure))
        assert right < wrong


def test_candidate_entropy_equals_the_loops() -> None:
    torch.manual_seed(0)
    scores, weights = torch.randn(5, 3, requires_grad=True), torch.rand(5)
    rows = torch.stack([torch.randperm(7)[:3] for _ in range(5)])
    labels = torch.cat([rows[:4, 1], torch.tensor([next(x for x in range(7) if x not in rows[4].tolist())])])
    found = candidate_entropy(scores, rows, labels, weights)
    exact = scores.detach().double().requires_grad_()
    each = zip(exact, rows.tolist(), labels.tolist(), weights, strict=True)
    wanted = torch.stack([w * naive.candidate_entropy(s, r, y) for s, r, y, w in each]).sum()
    assert found.sum.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert found.weight.item() == pytest.approx(sum(weights.tolist()))
    gradients = torch.autograd.grad(found.sum, scores)[0], torch.autograd.grad(wanted, exact)[0]
    torch.testing.assert_close(gradients[0].double(), gradients[1], rtol=1e-4, atol=1e-6)
    assert gradients[0][4].tolist() == [0, 0, 0]  # its label is no candidate
