"""A preallocated key-value cache with one length per row, in the shape transformers' attention layers expect."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Saved = list[tuple[Tensor, Tensor]]


class RaggedCache:
    """Keys and values per layer, [rows, heads, capacity, head_dim]; rows need not have equal lengths.

    ``place`` says where the next pass writes; ``update`` is called by each attention layer in turn. The rows are
    inference tensors, so whatever writes them runs in inference mode.
    """

    def __init__(self, layers: int, rows: int, length: int) -> None:
        self.lengths = [0] * rows
        self.capacity = length
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.is_compileable = False
        self._rows = slice(0, rows)
        self._new = 0
        self._places: tuple[Tensor, Tensor] | None = None

    def place(self, first: int, rows: int, new: int) -> None:
        """The next pass covers ``rows`` rows from ``first`` on and adds ``new`` positions to each."""
        self._rows, self._new, self._places = slice(first, first + rows), new, None
        self.reserve(self.visible)

    @property
    def visible(self) -> int:
        """Positions the pass may look at, counted over the longest row."""
        return max(self.lengths[self._rows]) + self._new

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the pass's rows of one layer; returns what attention reads: [B,heads,visible,head_dim] each."""
        store = self.layers[layer_idx]
        if store is None:
            store = self.layers[layer_idx] = (self.allocate(keys), self.allocate(values))
        lengths, visible = self.lengths[self._rows], self.visible
        for whole, new in zip(store, (keys, values), strict=True):
            if len(lengths) == 1:
                whole[self._rows.start, :, lengths[0] : visible] = new[0]
            else:  # one operator for all rows
                rows, columns = self._written(new.device)
                whole[rows, :, columns] = new.transpose(1, 2)
        return store[0][self._rows, :, :visible], store[1][self._rows, :, :visible]

    def _written(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where the pass writes, the same in every layer: rows [B,1] and columns [B,new]."""
        if self._places is None:
            starts = torch.tensor(self.lengths[self._rows], device=device)[:, None]
            rows = torch.arange(self._rows.start, self._rows.stop, device=device)[:, None]
            self._places = rows, starts + torch.arange(self._new, device=device)
        return self._places

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest computed length (asked by some models to build positions we pass anyway)."""
        return max(self.lengths[self._rows])

    @torch.inference_mode()
    def reserve(self, length: int) -> None:
        """Grow every row to ``length`` positions; what was computed stays."""
        if length <= self.capacity:
            return
        self.capacity = max(length, min(2 * self.capacity, self.capacity + 1024))
        for i, store in enumerate(self.layers):
            if store is not None:
                self.layers[i] = (self._grown(store[0]), self._grown(store[1]))

    @torch.inference_mode()
    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        for keys, values in filter(None, self.layers):
            length = self.lengths[source]
            keys[row, :, :length] = keys[source, :, :length]
            values[row, :, :length] = values[source, :, :length]
        self.lengths[row] = self.lengths[source]

    @torch.inference_mode()
    def export(self, row: int, length: int) -> Saved:
        """The first ``length`` positions of a row, copied out."""
        return [(k[row, :, :length].clone(), v[row, :, :length].clone()) for k, v in filter(None, self.layers)]

    @torch.inference_mode()
    def restore(self, row: int, saved: Saved, length: int) -> None:
        """Put ``length`` exported positions back at the start of a row."""
        self.reserve(length)
        for i, (keys, values) in enumerate(saved):
            if self.layers[i] is None:
                self.layers[i] = (self.allocate(keys[None]), self.allocate(values[None]))
            store = self.layers[i]
            if store is not None:
                store[0][row, :, :length] = keys[:, :length]
                store[1][row, :, :length] = values[:, :length]
        self.lengths[row] = length

    def allocate(self, like: Tensor) -> Tensor:
        """Storage for every row: like [B,heads,*,d] -> [rows,heads,capacity,d]."""
        # Zeros, not empty: masked positions are multiplied by zero, and zero times NaN is NaN.
        return like.new_zeros(len(self.lengths), like.shape[1], self.capacity, like.shape[3])

    def _grown(self, old: Tensor) -> Tensor:
        new = old.new_zeros(*old.shape[:2], self.capacity, old.shape[3])
        new[:, :, : old.shape[2]] = old
        return new


def causal_mask(
    lengths: list[int], new: int, visible: int, dtype: torch.dtype, device: torch.device, window: int | None = None
) -> Tensor:
    """Additive mask [B,1,new,visible]: row r of request b sees positions up to lengths[b] + r, ``window`` of them."""
    own = torch.tensor(lengths, device=device)[:, None] + torch.arange(new, device=device)
    columns = torch.arange(visible, device=device)
    hidden = columns[None, None] > own[..., None]
    if window is not None:
        hidden |= columns[None, None] <= own[..., None] - window
    return torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill(hidden, -torch.inf)[:, None]
