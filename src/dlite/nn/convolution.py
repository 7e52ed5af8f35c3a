"""DFlash2's layer: convolutions of two taps around attention and MLP, steered by the rows (blog, August 2026).

They run along the block, from each row to the next, and leave the context alone: it is not in the residual stream.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlite.nn.backbone import BackboneConfig, Layer, Tables


class DynamicConv(nn.Module):
    """Two convolutions, before and after a sublayer: y_t = k_t * x_t + l_t * x_{t-1}, nothing before the first row.

    k_t and l_t are a learned number a channel plus one a group of ``group`` channels, linear in the row that enters.
    """

    def __init__(self, hidden_size: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.base = nn.Parameter(torch.zeros(2, 2, hidden_size))  # before and after; this row and the one before it
        self.steer = nn.Linear(hidden_size, 4 * (hidden_size // group), bias=False)

    @torch.no_grad()
    def identity(self) -> None:
        """Start as no convolution at all."""
        self.base.zero_()
        self.base[:, 0] = 1
        self.steer.weight.zero_()

    def kernels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The kernels before and after the sublayer that reads ``rows``: [N,Q,D] -> [N,Q,2,D] each."""
        n, q, _ = rows.shape
        steer = self.steer(rows).view(n, q, 2, 2, -1).repeat_interleave(self.group, -1)
        before, after = (self.base + steer).unbind(2)
        return before, after


def convolve(rows: Tensor, kernel: Tensor) -> Tensor:
    """rows [N,Q,D], kernel [N,Q,2,D] -> [N,Q,D]."""
    earlier = F.pad(rows[:, :-1], (0, 0, 1, 0))
    return kernel[:, :, 0] * rows + kernel[:, :, 1] * earlier


class ConvLayer(Layer):
    """A backbone layer with both sublayers between convolutions."""

    def __init__(self, config: BackboneConfig, group: int) -> None:
        super().__init__(config)
        self.attention_conv = DynamicConv(config.hidden_size, group)
        self.mlp_conv = DynamicConv(config.hidden_size, group)

    def forward(
        self,
        rows: Tensor,
        context: Tensor | None,
        query_rope: Tables,
        context_rope: Tables,
        mask: Tensor | None,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        normed = self.input_layernorm(rows)
        before, after = self.attention_conv.kernels(normed)
        mixed = self.self_attn(convolve(normed, before), context, query_rope, context_rope, mask, past)
        rows = rows + convolve(mixed, after)
        normed = self.post_attention_layernorm(rows)
        before, after = self.mlp_conv.kernels(normed)
        return rows + convolve(self.mlp(convolve(normed, before)), after)
