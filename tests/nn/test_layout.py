"""Slots, local positions and the published taps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlite.errors import TargetError
from dlite.nn.layout import BlockLayout, default_taps


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


@pytest.mark.parametrize(("group", "positions"), [(1, [0, 1, 2, 3]), (2, [0, 0, 1, 2, 3])])
def test_known_tokens_stand_at_zero_and_placeholders_predict_themselves(group: int, positions: list[int]) -> None:
    layout = BlockLayout(3, group)
    assert layout.query_positions().tolist() == positions
    hidden = torch.arange(group + 3).view(1, -1, 1)
    assert layout.drafts(hidden).flatten().tolist() == list(range(group, group + 3))
