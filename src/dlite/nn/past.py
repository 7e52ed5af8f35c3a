"""Verified positions as keys and values: gathered from shared rows in training, kept from round to round in decoding.

Rotary embedding sees differences only, so keys that are kept with their global positions and blocks that count their
own from the anchor's give the same products as positions counted backwards from the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dlite.nn.backbone import Attention, BackboneConfig, rope, rotate
from dlite.nn.cache import RaggedCache


@dataclass(frozen=True)
class SharedPast:
    """Training: rows [P,D] of which block n reads ``index`` [N,W], standing ``distance`` [N,W] before its anchor."""

    rows: Tensor
    index: Tensor
    distance: Tensor
    mask: Tensor
    config: BackboneConfig

    def keys_values(self, index: int, attention: Attention) -> tuple[Tensor, Tensor]:
        """Each row is projected once, however many blocks read it."""
        keys, values = (x[0].transpose(0, 1)[self.index].transpose(1, 2) for x in attention.project(self.rows[None]))
        tables = rope(-self.distance, self.config.head_dim, self.config.rope_theta, keys.dtype)
        return rotate(keys, tables), values


@dataclass(frozen=True)
class KeptPast:
    """Decoding: what a ``PastMemory`` holds for the rows of a batch, one (keys, values) a layer."""

    kept: Sequence[tuple[Tensor, Tensor]]
    mask: Tensor

    def keys_values(self, index: int, attention: Attention) -> tuple[Tensor, Tensor]:
        """As kept."""
        return self.kept[index]


class Layers(Protocol):
    """Layers with an attention each: a ``Backbone``, or the one layer of a recursive drafter."""

    config: BackboneConfig
    layers: nn.ModuleList

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As of any module."""


class PastMemory:
    """Keys and values of a backbone's layers for the verified positions of each request, all or the last ``window``.

    ``fuse`` makes a position's context row from its taps: [B,R,n,D] -> [B,R,D].
    ``window`` positions are a ring, position p in slot p mod window: attention does not mind the order. A ring cannot be
    cut back to a shorter prefix, so it is not restored but seen again (``overlap``).
    """

    def __init__(
        self, backbone: Layers, fuse: Callable[[Tensor], Tensor], rows: int, window: int | None = None
    ) -> None:
        self.backbone, self.fuse, self.window = backbone, fuse, window
        self.overlap = window or 0
        config = backbone.config
        self.cache = RaggedCache(config.num_layers, rows, window or 64)
        self.seen = [0] * rows  # position of the next row to come

    @torch.inference_mode()
    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """Keep the first ``kept[b]`` of the new positions: tokens [B,R], taps [B,R,n,D]."""
        self.append(first, self.fuse(taps), kept)

    def append(self, first: int, context: Tensor, kept: Sequence[int]) -> None:
        """Keep the first ``kept[b]`` of these rows [B,R,D] behind those of before."""
        config, (batch, new, _) = self.backbone.config, context.shape
        starts = torch.tensor(self.seen[first : first + batch], device=context.device)
        positions = starts[:, None] + torch.arange(new, device=context.device)
        tables = rope(positions, config.head_dim, config.rope_theta, context.dtype)
        if self.window is None:
            self.cache.reserve(max(s + k for s, k in zip(self.seen[first:], kept, strict=False)))
        for index, layer in enumerate(self.backbone.layers):
            keys, values = layer.self_attn.project(context)  # type: ignore[union-attr, operator]
            self._write(index, first, rotate(keys, tables), values, kept)
        for offset, count in enumerate(kept):
            self.seen[first + offset] += count
            self.cache.lengths[first + offset] = self._stored(first + offset)

    def read(self, rows: Sequence[int], *, pivot: bool = True) -> KeptPast:
        """The past of these rows, padded to the longest; ``pivot`` False leaves out the newest position of each."""
        lengths = [self._stored(row) for row in rows]
        visible = max(lengths)
        at = slice(rows[0], rows[-1] + 1) if list(rows) == list(range(rows[0], rows[-1] + 1)) else list(rows)
        kept = [(keys[at, :, :visible], values[at, :, :visible]) for keys, values in filter(None, self.cache.layers)]
        device = kept[0][0].device
        mask = torch.arange(visible, device=device) < torch.tensor(lengths, device=device)[:, None]
        if not pivot:
            newest = [(self.seen[row] - 1) % (self.window or self.seen[row]) for row in rows]
            mask[torch.arange(len(rows), device=device), torch.tensor(newest, device=device)] = False
        return KeptPast(kept, mask)

    def anchors(self, rows: Sequence[int]) -> Tensor:
        """Where the next row of each request stands [B]: the anchor; for pairs the pivot."""
        return torch.tensor([self.seen[row] for row in rows], device=self.device)

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row."""
        self.seen[row] = self.cache.lengths[row] = 0

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        self.cache.move(source, row)
        self.seen[row] = self.seen[source]

    def export(self, row: int, length: int) -> Any:
        """Keys and values of the first ``length`` positions; nothing of a ring."""
        return None if self.window else self.cache.export(row, length)

    def restore(self, row: int, saved: Any, length: int) -> None:
        """What ``export`` gave, cut to ``length``. A ring fills anew before it is read: the overlap is its size."""
        if saved is not None:
            self.cache.restore(row, saved, length)
        self.seen[row] = length
        self.cache.lengths[row] = self._stored(row)

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""
        parts = (x[row, :, : self._stored(row)] for layer in filter(None, self.cache.layers) for x in layer)
        return sum(part.numel() * part.element_size() for part in parts)

    @property
    def device(self) -> torch.device:
        """Where the drafter is."""
        return next(self.backbone.parameters()).device

    def _stored(self, row: int) -> int:
        return self.seen[row] if self.window is None else min(self.seen[row], self.window)

    def _write(self, index: int, first: int, keys: Tensor, values: Tensor, kept: Sequence[int]) -> None:
        store = self.cache.layers[index]
        if store is None:
            store = self.cache.layers[index] = (self.cache.allocate(keys), self.cache.allocate(values))
        for offset, count in enumerate(kept):
            start, row = self.seen[first + offset], first + offset
            skip = max(0, count - self.window) if self.window else 0
            for whole, new in zip(store, (keys, values), strict=True):
                if self.window is None:
                    whole[row, :, start : start + count] = new[offset, :, :count]
                else:
                    slots = torch.arange(start + skip, start + count, device=keys.device) % self.window
                    whole[row, :, slots] = new[offset, :, skip:count]


class PairMemory(PastMemory):
    """The same for entries that pair the features of a position with the token behind it.

    ``fuse`` makes features from taps: [B,R,n,D] -> [B,R,D]; ``pair`` makes entries from tokens [B,R] and the features
    before them. The newest features wait for their token, which is the anchor. A restored prefix ends where the token
    behind its last position is still known, so that one position is seen again.
    """

    def __init__(
        self,
        backbone: Layers,
        fuse: Callable[[Tensor], Tensor],
        pair: Callable[[Tensor, Tensor], Tensor],
        rows: int,
        window: int | None = None,
    ) -> None:
        super().__init__(backbone, fuse, rows, window)
        self.overlap = max(1, self.overlap)
        self.pair = pair
        self.waiting: list[Tensor | None] = [None] * rows

    @torch.inference_mode()
    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """Each kept token completes the features before it; at least one of a row is kept."""
        before = [x for x in self.waiting[first : first + len(tokens)] if x is not None]
        if 0 < len(before) < len(tokens):
            for b, count in enumerate(kept):
                self.observe(first + b, tokens[b : b + 1], taps[b : b + 1], [count])
            return
        features = self.fuse(taps)
        if before:
            entries = self.pair(tokens, torch.cat([torch.stack(before)[:, None], features[:, :-1]], 1))
            self.append(first, entries, kept)
        else:
            self.append(first, self.pair(tokens[:, 1:], features[:, :-1]), [count - 1 for count in kept])
        for b, count in enumerate(kept):
            self.waiting[first + b] = features[b, count - 1].clone()  # not the whole pass

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row."""
        super().clear(row, tokens, prompt)
        self.waiting[row] = None

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        super().move(source, row)
        self.waiting[row] = self.waiting[source]

    def export(self, row: int, length: int) -> Any:
        """The entries whose token is among the first ``length``."""
        return super().export(row, length - 1)

    def restore(self, row: int, saved: Any, length: int) -> None:
        """The entries of ``length`` positions; nothing waits, for the token behind the last is known."""
        super().restore(row, saved, length)
        self.waiting[row] = None

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""
        newest = self.waiting[row]
        return super().bytes(row) + (0 if newest is None else newest.numel() * newest.element_size())


def past_bytes(config: BackboneConfig, context: int, window: int | None = None) -> int:
    """Bytes of fp32 keys and values behind ``context`` tokens, of which the last one is the anchor."""
    positions = min(max(0, context - 1), window or context)
    return 2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim * positions
