"""The backbone against its loops over one block, values and gradients; positions; grouped attention."""

from __future__ import annotations

import pytest
import torch

from dlite.nn import naive
from dlite.nn.backbone import Backbone, BackboneConfig, Context, grouped_attention
from tests.nn.support import randomise

ODD = BackboneConfig(7, 2, num_heads=6, num_kv_heads=2, head_dim=4, intermediate_size=11)


def made(config: BackboneConfig) -> Backbone:
    return randomise(Backbone(config).double())


@pytest.mark.parametrize(
    "config",
    [
        ODD,
        BackboneConfig(7, 2, num_heads=3, num_kv_heads=1, head_dim=6, intermediate_size=5, qk_norm=False),
        BackboneConfig(8, 1, num_heads=2, num_kv_heads=2, head_dim=2, intermediate_size=9, rope_theta=100.0),
    ],
)
def test_values_and_gradients_equal_the_loops(config: BackboneConfig) -> None:
    model = made(config)
    N, C, Q = 2, 5, 3
    queries = torch.randn(N, Q, config.hidden_size, dtype=torch.float64, requires_grad=True)
    context = torch.randn(N, C, config.hidden_size, dtype=torch.float64, requires_grad=True)
    at, behind = [0, 1, 2], [0, 0, -3, -1, 0]
    fast = model(queries, torch.tensor(at), Context(context, torch.tensor(behind)))
    slow = torch.stack([torch.stack(naive.backbone(model, queries[n], at, context[n], behind)) for n in range(N)])
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)  # RoPE's tables are fp32
    wanted = [queries, context, *model.parameters()]
    pull = torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_masked_context_row_is_as_good_as_absent() -> None:
    model = made(ODD)
    queries, context = torch.randn(2, 3, 7).double(), torch.randn(2, 4, 7).double()
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    positions = torch.tensor([[0, -9, -1, 0], [-2, -1, 0, -9]])
    fast = model(queries, torch.arange(3), Context(context, positions, mask))
    for n in range(2):
        real = mask[n]
        alone = naive.backbone(model, queries[n], [0, 1, 2], context[n][real], positions[n][real].tolist())
        torch.testing.assert_close(fast[n], torch.stack(alone), rtol=1e-5, atol=1e-6)


def test_only_differences_of_positions_count() -> None:
    """Local and global positions are the same thing to RoPE while all rows move together, and not otherwise."""
    model = made(ODD)
    queries, context = torch.randn(2, 3, 7).double(), torch.randn(2, 4, 7).double()
    at, behind = torch.arange(3), torch.tensor([0, 0, -1, -2])
    here = model(queries, at, Context(context, behind))
    moved = model(queries, at + 1234, Context(context, behind + 1234))
    torch.testing.assert_close(moved, here, rtol=0, atol=1e-3)  # the tables are fp32
    split = model(queries, at + 1234, Context(context, behind))
    assert (split - here).abs().max() > 1e-2


def test_context_slots_at_one_position_are_a_set() -> None:
    model = made(ODD)
    queries, context = torch.randn(1, 3, 7).double(), torch.randn(1, 4, 7).double()
    same = torch.zeros(4, dtype=torch.long)
    one = model(queries, torch.arange(3), Context(context, same))
    other = model(queries, torch.arange(3), Context(context[:, [2, 0, 3, 1]], same))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("masked", [False, True])
def test_grouped_attention_equals_repeated_keys(masked: bool) -> None:
    queries, keys, values = (torch.randn(2, heads, rows, 4) for heads, rows in ((6, 3), (2, 5), (2, 5)))
    mask = torch.rand(2, 1, 3, 5) < 0.6 if masked else None
    if mask is not None:
        mask[..., 0] = True
    repeated = torch.nn.functional.scaled_dot_product_attention(
        queries, keys.repeat_interleave(3, 1), values.repeat_interleave(3, 1), attn_mask=mask
    )
    torch.testing.assert_close(grouped_attention(queries, keys, values, mask), repeated)
