"""The convolutions against their loops; the layer as the identity start leaves it, and which way it looks."""

from __future__ import annotations

import copy

import pytest
import torch

from dlite.nn import naive_convolution
from dlite.nn.backbone import BackboneConfig, Layer, rope
from dlite.nn.convolution import ConvLayer, DynamicConv, convolve
from tests.nn.support import randomise

SIZES = BackboneConfig(6, 1, num_heads=2, num_kv_heads=1, head_dim=4, intermediate_size=7)


def ran(layer: Layer, rows: torch.Tensor) -> torch.Tensor:
    """The layer over its own rows [N,Q,D] alone."""
    tables = rope(torch.arange(rows.shape[1]), 4, 1e4, rows.dtype)
    return layer(rows, None, tables, tables, None)


@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize("rows", [1, 5])
def test_values_and_gradients_equal_the_loops(group: int, rows: int) -> None:
    conv = randomise(DynamicConv(6, group).double())
    sublayer = randomise(torch.nn.Linear(6, 6).double(), seed=1)
    x = torch.randn(3, rows, 6, dtype=torch.float64, requires_grad=True)
    before, after = conv.kernels(x)
    fast = convolve(sublayer(convolve(x, before)), after)
    slow = torch.stack(
        [
            torch.stack(
                naive_convolution.between(conv, x[n].unbind(), lambda inside: [sublayer(row) for row in inside])
            )
            for n in range(3)
        ]
    )
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    wanted, pull = [x, *conv.parameters()], torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_a_layer_starts_as_one_without_convolutions() -> None:
    layer, plain = randomise(ConvLayer(SIZES, 2)), Layer(SIZES)
    for conv in (layer.attention_conv, layer.mlp_conv):
        conv.identity()
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if "conv" not in k})
    rows = torch.randn(2, 4, 6)
    assert torch.equal(ran(layer, rows), ran(plain, rows))


def test_both_sublayers_are_convolved_on_both_sides() -> None:
    layer = randomise(ConvLayer(SIZES, 2))
    rows = torch.randn(2, 4, 6)
    base = ran(layer, rows)
    for name in ("attention_conv", "mlp_conv"):
        for side in (0, 1):
            other = copy.deepcopy(layer)
            with torch.no_grad():
                getattr(other, name).base[side] += 0.5
            assert not torch.allclose(ran(other, rows), base), (name, side)


def test_a_row_sees_the_one_before_and_none_behind() -> None:
    conv = randomise(DynamicConv(6, 3))
    rows = torch.randn(1, 5, 6)
    changed = rows.clone()
    changed[:, 2] += 1
    before = convolve(rows, conv.kernels(rows)[0]), convolve(changed, conv.kernels(changed)[0])
    assert (before[0] - before[1]).abs().amax((0, 2)).gt(0).tolist() == [False, False, True, True, False]
