"""Slots, local positions and the published taps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlite.errors import TargetError
from dlite.nn.layout import BlockLayout, default_taps, spread_taps


def test_published_taps() -> None:
    assert default_taps(36, 12) == (0, 1, 5, 8, 12, 16, 19, 23, 27, 30, 34, 35)


@given(st.integers(3, 80).flatmap(lambda n: st.tuples(st.just(n), st.integers(3, n))))
def test_taps_rise_from_the_first_layer_to_the_last(sizes: tuple[int, int]) -> None:
    num_layers, count = sizes
    taps = default_taps(num_layers, count)
    assert len(taps) == count
    assert (taps[0], taps[-1]) == (0, num_layers - 1)
    assert sorted(set(taps)) == list(taps)


@pytest.mark.parametrize("count", [2, 37])
def test_a_tap_count_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(TargetError, match=f"{count} taps asked of a target with 36 layers. Expected 3 to 36."):
        default_taps(36, count)


@pytest.mark.parametrize("num_layers", [8, 28, 31, 32, 36, 61])
def test_three_spread_taps_are_eagles(num_layers: int) -> None:
    """It reads what enters layers 2, N/2 and N-3, which is what the layers before them put out."""
    assert spread_taps(num_layers, 3) == (1, num_layers // 2 - 1, num_layers - 4)


@given(st.integers(6, 80).flatmap(lambda n: st.tuples(st.just(n), st.integers(2, n - 4))))
def test_spread_taps_rise(sizes: tuple[int, int]) -> None:
    taps = spread_taps(*sizes)
    assert (len(taps), taps[0], taps[-1]) == (sizes[1], 1, sizes[0] - 4)
    assert sorted(set(taps)) == list(taps)


@pytest.mark.parametrize("count", [1, 5])
def test_a_spread_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(TargetError, match=f"{count} taps asked of a target with 8 layers. Expected 2 to 4."):
        spread_taps(8, count)


@pytest.mark.parametrize(("group", "positions"), [(1, [0, 1, 2, 3]), (2, [0, 0, 1, 2, 3])])
def test_known_tokens_stand_at_zero_and_placeholders_predict_themselves(group: int, positions: list[int]) -> None:
    layout = BlockLayout(3, group)
    assert layout.query_positions().tolist() == positions
    hidden = torch.arange(group + 3).view(1, -1, 1)
    assert layout.drafts(hidden).flatten().tolist() == list(range(group, group + 3))
