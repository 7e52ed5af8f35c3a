"""DFlow's relay against loops: one row's correction with its gradients, and what a batch of rounds leaves."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dlite.nn import naive_relay
from dlite.nn.backbone import Backbone, BackboneConfig
from dlite.nn.relay import Relay, RelayMemory
from tests.nn.support import randomise

D = 7


def test_rows_and_gradients_equal_loops() -> None:
    model = randomise(Relay(D, 1e-5))
    inputs = [torch.randn(5, D, requires_grad=True) for _ in range(3)]
    weights = torch.randn(5, D)
    found = model(*inputs)
    wanted = torch.stack([naive_relay.relay(model, *row) for row in zip(*inputs, strict=True)])
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad((out * weights).sum(), [*inputs, *model.parameters()]) for out in (found, wanted)]
    for fast, slow in zip(*gradients, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)


def test_silent_it_adds_nothing_and_still_learns() -> None:
    model = randomise(Relay(D, 1e-5))
    model.silence()
    found = model(*torch.randn(3, 5, D))
    assert torch.equal(found, torch.zeros(5, D))
    found.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.outer.parameters())


def test_without_rows_every_weight_has_a_gradient_of_zero() -> None:
    model = randomise(Relay(D, 1e-5))
    model(*torch.empty(3, 0, D)).sum().backward()
    assert all(p.grad is not None and torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())


def memory(rows: int) -> RelayMemory:
    backbone = randomise(Backbone(BackboneConfig(6, 1, 2, 1, 4, 8)))
    return RelayMemory(backbone, lambda taps: taps[..., 0, :], rows)


def observe(own: RelayMemory, first: int, tokens: list[list[int]], kept: list[int]) -> Tensor:
    taps = torch.randn(len(tokens), len(tokens[0]), 1, 6)
    own.observe(first, torch.tensor(tokens), taps, kept)
    return taps[:, :, 0]


def as_pairs(own: RelayMemory, rows: list[int]) -> list[Any]:
    left = own.left(rows)
    return list(zip(left.block.tolist(), left.slot.tolist(), left.rejected.tolist(), left.rows.tolist(), strict=True))


def test_what_rounds_leave_equals_loops() -> None:
    chance = random.Random(0)
    for _ in range(30):
        own, K = memory(3), chance.randint(1, 4)
        observe(own, 0, [[1, 2], [3, 4], [5, 6]], [2, 2, 2])
        drafts = [[chance.randint(0, 9) for _ in range(K)] for _ in range(3)]
        counts = [chance.randint(0, K) for _ in range(3)]
        own.drafted([0, 1, 2], torch.tensor(drafts), counts)
        verified = [[1, *(d if chance.random() < 0.8 else 99 for d in row)] for row in drafts]
        kept = [1 + chance.randint(0, count) for count in counts]
        rows = observe(own, 0, verified, kept)
        wanted = [
            (b, slot, verified[b][kept[b]], rows[b, r].tolist())
            for b in range(3)
            for r, slot in naive_relay.left(drafts[b][: counts[b]], verified[b], kept[b])
        ]
        assert as_pairs(own, [0, 1, 2]) == wanted


def test_it_is_of_one_round_and_one_request() -> None:
    own = memory(3)
    observe(own, 0, [[1, 2], [3, 4], [5, 6]], [2, 2, 2])
    assert as_pairs(own, [0, 1, 2]) == []  # a prefill leaves nothing
    own.drafted([0, 2], torch.tensor([[7, 8], [9, 7]]), [2, 2])
    rows = observe(own, 0, [[1, 7, 8], [3, 7, 8], [5, 9, 7]], [1, 1, 3])
    wanted = [(0, 1, 7, rows[0, 1].tolist()), (0, 2, 7, rows[0, 2].tolist())]
    assert as_pairs(own, [0, 1, 2]) == wanted  # row 1 had other drafts, row 2 all of its own accepted
    plain = own.cache.export(0, 3)
    assert own.bytes(0) == own.bytes(1) + rows[0, 1:].numel() * 4
    assert type(own.export(0, 3)) is type(plain)  # nothing of the round is exported
    own.move(0, 1)
    own.clear(0)
    assert as_pairs(own, [1]) == wanted
    assert as_pairs(own, [0]) == []
    own.restore(0, plain, 3)
    assert as_pairs(own, [0]) == []
    observe(own, 1, [[4]], [1])  # a round without drafts
    assert as_pairs(own, [1]) == []
