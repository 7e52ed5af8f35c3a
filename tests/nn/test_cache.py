"""The ragged cache's masks and growth."""

from __future__ import annotations

import pytest
import torch

from dlite.nn.cache import RaggedCache, causal_mask


@pytest.mark.parametrize("window", [None, 2])
def test_mask_shows_the_past_and_the_window(window: int | None) -> None:
    lengths, new, visible = [3, 0], 2, 5
    mask = causal_mask(lengths, new, visible, torch.float32, torch.device("cpu"), window)
    assert mask.shape == (2, 1, 2, 5)
    for b, length in enumerate(lengths):
        for row in range(new):
            at = length + row
            shown = [c <= at and (window is None or c > at - window) for c in range(visible)]
            assert (mask[b, 0, row] == 0).tolist() == shown
            assert mask[b, 0, row][~torch.tensor(shown)].eq(-torch.inf).all()


@torch.inference_mode()
def test_growing_keeps_what_was_computed() -> None:
    cache = RaggedCache(1, 2, 2)
    keys = torch.arange(16.0).view(2, 2, 2, 2)
    cache.place(0, 2, 2)
    cache.update(keys, -keys, 0)
    cache.lengths = [2, 1]
    cache.place(0, 2, 3)
    seen, values = cache.update(torch.full((2, 2, 3, 2), 99.0), torch.full((2, 2, 3, 2), -99.0), 0)
    assert seen.shape == (2, 2, 5, 2)
    assert torch.equal(seen[0, :, :2], keys[0])
    assert torch.equal(seen[1, :, :1], keys[1, :, :1])
    assert (seen[0, :, 2:] == 99).all()
    assert (seen[1, :, 1:4] == 99).all()
    assert seen.isfinite().all()
    assert torch.equal(values, -seen)


def test_a_pass_over_some_rows_leaves_the_others() -> None:
    cache = RaggedCache(1, 3, 4)
    cache.place(0, 3, 1)
    cache.update(torch.ones(3, 1, 1, 2), torch.ones(3, 1, 1, 2), 0)
    cache.lengths = [1, 1, 1]
    cache.place(1, 1, 2)
    cache.update(torch.full((1, 1, 2, 2), 5.0), torch.full((1, 1, 2, 2), 5.0), 0)
    assert [saved[0][0][0, :, 0].tolist() for saved in (cache.export(row, 3) for row in range(3))] == [
        [1, 0, 0], [1, 5, 5], [1, 0, 0],
    ]  # fmt: skip
