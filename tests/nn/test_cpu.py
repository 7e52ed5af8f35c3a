"""The frozen CPU layout gives the same numbers as the modules it replaces."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dlite.nn.backbone import Layer, rope
from dlite.nn.cpu import FastRMSNorm, PackedLinear, Projection, can_pack, fast_norm, freeze_for_cpu
from tests.nn.support import randomise
from tests.nn.test_backbone import ODD

pytestmark = pytest.mark.skipif(not can_pack(torch.zeros(1)), reason="this PyTorch has no CPU packing operators")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 9])
def test_packed_linear_equals_linear(bias: bool, rows: int) -> None:
    linear = randomise(nn.Linear(13, 7, bias=bias))
    x = torch.randn(2, rows, 13)
    packed = PackedLinear(linear.weight, linear.bias)
    torch.testing.assert_close(packed(x), linear(x), rtol=1e-5, atol=1e-5)


def test_a_frozen_layer_keeps_its_numbers_and_is_rewritten() -> None:
    layer = randomise(Layer(ODD)).requires_grad_(False)
    frozen = copy.deepcopy(layer)
    assert freeze_for_cpu(frozen, (("k_proj", "v_proj"), ("gate_proj", "up_proj")))
    kinds = [type(frozen.self_attn.k_proj), type(frozen.self_attn.q_proj), type(frozen.input_layernorm)]
    assert kinds == [Projection, PackedLinear, FastRMSNorm]
    for _ in range(2):  # a second pass must not meet the first one's shared product
        rows, context = torch.randn(2, 3, 7), torch.randn(2, 5, 7)
        tables = [rope(torch.arange(n), 4, 1e4, torch.float32) for n in (3, 5)]
        torch.testing.assert_close(
            frozen(rows, context, *tables, None), layer(rows, context, *tables, None), rtol=1e-4, atol=1e-5
        )


def test_fused_projections_with_mixed_biases() -> None:
    parent = nn.Module()
    parent.gate_proj, parent.up_proj = nn.Linear(5, 3, bias=True), nn.Linear(5, 4, bias=False)
    randomise(parent)
    plain = copy.deepcopy(parent)
    freeze_for_cpu(parent)
    x = torch.randn(2, 5)
    torch.testing.assert_close(parent.gate_proj(x), plain.gate_proj(x))
    torch.testing.assert_close(parent.up_proj(x), plain.up_proj(x))


def test_what_is_not_fp32_is_left_alone() -> None:
    layer = Layer(ODD).bfloat16()
    assert not freeze_for_cpu(layer)
    assert type(layer.mlp.up_proj) is nn.Linear


class OddNorm(nn.Module):
    """Looks like an RMSNorm but subtracts the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(4)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - 0.5 * x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def test_a_norm_that_only_looks_like_one_is_not_replaced() -> None:
    assert fast_norm(OddNorm()) is None
    assert isinstance(fast_norm(randomise(nn.RMSNorm(4, eps=1e-3))), FastRMSNorm)
