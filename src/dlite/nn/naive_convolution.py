"""DFlash2's convolutions as loops over one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from dlite.nn.convolution import DynamicConv


def between(
    model: DynamicConv, rows: Sequence[Tensor], sublayer: Callable[[list[Tensor]], list[Tensor]]
) -> list[Tensor]:
    """A sublayer of the rows [D] between its two convolutions."""
    mixed = sublayer(convolution(model, rows, rows, 0))
    return convolution(model, mixed, rows, 1)


def convolution(
    model: DynamicConv, rows: Sequence[Tensor], steering: Sequence[Tensor], side: Literal[0, 1]
) -> list[Tensor]:
    """One convolution: ``side`` 0 before the sublayer, 1 behind it, steered by the rows that enter the sublayer."""
    size, groups = len(rows[0]), len(rows[0]) // model.group
    mixed = []
    for t, row in enumerate(rows):
        steer = model.steer.weight @ steering[t]
        channels = []
        for d in range(size):
            value = row.new_zeros(())
            for back in (0, 1):
                if t >= back:
                    tap = model.base[side, back, d] + steer[(2 * side + back) * groups + d // model.group]
                    value = value + tap * rows[t - back][d]
            channels.append(value)
        mixed.append(torch.stack(channels))
    return mixed
