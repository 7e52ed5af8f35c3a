"""Medusa's heads against their loops."""

from __future__ import annotations

import torch

from dlite.nn.naive_residual import residual_heads
from dlite.nn.residual import ResidualHeads
from tests.nn.support import randomise


def test_values_and_gradients_equal_the_loops() -> None:
    heads = randomise(ResidualHeads(5, 3).double())
    hidden = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    fast = heads(hidden)
    slow = torch.stack([torch.stack(residual_heads(heads, row)) for row in hidden])
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    wanted, pull = [hidden, *heads.parameters()], torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
