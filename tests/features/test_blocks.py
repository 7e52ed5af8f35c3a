"""History windows against their loops: the right positions, never those of another conversation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dlite.features import naive
from dlite.features.blocks import merge, window
from dlite.features.capture import Capturer
from tests.features.support import SETTINGS, TOY, several


@pytest.mark.parametrize(("history", "width"), [(3, 3), (4, 2), (50, 50)])
def test_windows_equal_the_loops(history: int, width: int) -> None:
    capturer = Capturer(TOY, replace(SETTINGS, history=history, anchors_per_sequence=4))
    parts = [capturer.capture(c) for c in several(4, (6, 6))]
    owners = [number for number, part in enumerate(parts) for _ in part.place]
    blocks = merge(parts)
    rows, distance, real = window(blocks, width)
    places = list(zip(owners, blocks.place.tolist(), strict=True))
    for n, pivot in enumerate(blocks.pivot.tolist()):
        found = list(zip(rows[n][real[n]].tolist(), distance[n][real[n]].tolist(), strict=True))
        assert found == naive.window(places, pivot, width)
        assert len(found) == min(width, places[pivot][1])  # everything before the pivot was captured


def test_merging_keeps_what_each_block_reads() -> None:
    capturer = Capturer(TOY, SETTINGS)
    parts = [capturer.capture(c) for c in several(3)]
    joined = merge(parts)
    assert torch.equal(joined.taps[joined.pivot], torch.cat([p.taps[p.pivot] for p in parts]))
    assert torch.equal(joined.last[joined.rows], torch.cat([p.last[p.rows] for p in parts]))
    assert len(joined) == sum(map(len, parts))
