"""Entries that wait for the token behind them: however positions arrive, what is kept is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.nn.backbone import BackboneConfig
from dlite.nn.past import PairMemory
from dlite.nn.recursive import Recursive, WideEntry
from tests.nn.support import randomise

CONFIG = BackboneConfig(7, 1, num_heads=2, num_kv_heads=1, head_dim=4, intermediate_size=5)
LENGTH = 12
Cuts = list[int]


@pytest.fixture(scope="module")
def body() -> Recursive:
    return randomise(Recursive(CONFIG, WideEntry(CONFIG))).requires_grad_(False)


def text(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Tokens [LENGTH] and taps [LENGTH,1,D] of one request."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(50, (LENGTH,), generator=generator), torch.randn(LENGTH, 1, 7, generator=generator)


def memory(body: Recursive, window: int | None = None, rows: int = 3) -> PairMemory:
    words = torch.randn(50, 7, generator=torch.Generator().manual_seed(9))
    return PairMemory(body, lambda taps: taps[..., 0, :], lambda t, g: body.layer.entry(words[t], g)[1], rows, window)


def see(kept: PairMemory, row: int, start: int, end: int, wrong: int = 0, seed: int = 0) -> None:
    """Positions start..end-1 stand; ``wrong`` more are rejected."""
    tokens, taps = text(seed)
    noise = torch.randn(1, wrong, 1, 7)
    kept.observe(
        row,
        torch.cat([tokens[None, start:end], torch.full((1, wrong), 7)], 1),
        torch.cat([taps[None, start:end], noise], 1),
        [end - start],
    )


def held(kept: PairMemory, row: int) -> Any:
    """Keys and values of a row in order of position, its next position, and what waits."""
    past, seen = kept.read([row]), kept.seen[row]
    window = kept.window or max(seen, 1)
    order = [p % window for p in range(max(0, seen - window), seen)]
    keys, values = past.kept[0]
    return keys[0][:, order], values[0][:, order], seen, kept.waiting[row]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("cuts", [[12], [1, 12], [5, 6, 9, 12], [1, 2, 3, 12]])
def test_entries_do_not_depend_on_how_positions_arrive(body: Recursive, window: int | None, cuts: Cuts) -> None:
    whole, parts = memory(body, window), memory(body, window)
    see(whole, 0, 0, LENGTH)
    for start, end in zip([0, *cuts], cuts, strict=False):
        see(parts, 1, start, end, wrong=(start * 7) % 3)
    torch.testing.assert_close(held(parts, 1), held(whole, 0))
    assert held(whole, 0)[2] == LENGTH - 1  # the last one waits for its token


@pytest.mark.parametrize("window", [None, 3])
def test_a_restored_prefix_is_what_was_seen(body: Recursive, window: int | None) -> None:
    """The token behind the restored end differs from the one that was there: the entry over it is made anew."""
    first, second, cold = memory(body, window), memory(body, window), memory(body, window)
    see(first, 0, 0, 10)
    saved, shared = first.export(0, 10), 7
    start = shared - first.overlap
    see(second, 1, 0, 4, seed=5)
    second.clear(1)
    second.restore(1, saved, start)
    tokens, taps = text()
    tokens[shared:] += 1
    for kept, row, begin in ((second, 1, start), (cold, 0, 0)):
        kept.observe(row, tokens[None, begin:11] % 50, taps[None, begin:11], [11 - begin])
    torch.testing.assert_close(held(second, 1), held(cold, 0))


def test_rows_that_wait_and_rows_that_do_not_share_a_pass(body: Recursive) -> None:
    mixed, alone = memory(body), memory(body)
    see(mixed, 0, 0, 4)
    see(alone, 0, 0, 4)
    see(alone, 0, 4, 7)
    see(alone, 1, 0, 2, seed=3)
    (tokens, taps), (others, states) = text(), text(3)
    mixed.observe(0, torch.stack([tokens[4:7], others[:3]]), torch.stack([taps[4:7], states[:3]]), [3, 2])
    for row in (0, 1):
        torch.testing.assert_close(held(mixed, row), held(alone, row))


def test_moving_and_clearing(body: Recursive) -> None:
    kept, other = memory(body), memory(body)
    see(kept, 2, 0, 5)
    kept.move(2, 0)
    kept.clear(2)
    assert kept.bytes(2) == 0
    see(other, 0, 0, 8)
    see(kept, 0, 5, 8)
    torch.testing.assert_close(held(kept, 0), held(other, 0))
    assert kept.bytes(0) == 4 * (7 * 2 * 4 + 7)  # seven entries of keys and values, and the features that wait


def test_nothing_is_kept_of_a_single_position(body: Recursive) -> None:
    kept = memory(body)
    see(kept, 0, 0, 1)
    past = kept.read([0])
    assert past.mask.shape == (1, 0)
    assert kept.anchors([0]).tolist() == [0]
