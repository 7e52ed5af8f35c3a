"""Training blocks as they travel from capture or store to the trainer."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """N blocks over P captured positions. Only what a block needs is stored, shared positions once.

    taps [P,n,D] raw taps   place [P] position in its conversation, growing, conversations one after another
    following [P] the token after each
    last [U,D] raw last taps, from which p_target is made
    pivot [N] row of ``taps``   rows [N,K] rows of ``last``: entry i predicts label i
    anchor, before [N] token ids   labels [N,K] token ids, 0-padded   counted [N] how many labels count
    """

    taps: Tensor
    place: Tensor
    following: Tensor
    last: Tensor
    pivot: Tensor
    rows: Tensor
    anchor: Tensor
    before: Tensor
    labels: Tensor
    counted: Tensor

    def __len__(self) -> int:
        return len(self.anchor)

    def to(self, device: torch.device) -> Blocks:
        """A copy on ``device``."""
        return Blocks(*(getattr(self, f.name).to(device) for f in fields(self)))


def merge(parts: list[Blocks]) -> Blocks:
    """One ``Blocks`` from several, with row numbers shifted."""
    moved, taps, last = [], 0, 0
    for part in parts:
        moved.append((part.pivot + taps, part.rows + last))
        taps, last = taps + len(part.taps), last + len(part.last)
    joined = {f.name: torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Blocks)}
    joined["pivot"] = torch.cat([pivot for pivot, _ in moved])
    joined["rows"] = torch.cat([rows for _, rows in moved])
    return Blocks(**joined)


def window(blocks: Blocks, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The captured positions before each pivot: (row of ``taps`` [N,W], distance to the anchor [N,W], real [N,W]).

    A row is real while positions follow each other without a gap in the same conversation. Conversations are told
    apart only up to the captured history: ``width`` must not be larger.
    """
    offsets = torch.arange(width, 0, -1, device=blocks.pivot.device)
    rows = blocks.pivot[:, None] - offsets
    inside = rows >= 0
    rows = rows.clamp_min(0)
    real = inside & (blocks.place[rows] == blocks.place[blocks.pivot][:, None] - offsets)
    # A neighbouring conversation could match by chance: its run must be unbroken up to the pivot.
    real = real.flip(1).long().cumprod(1).flip(1).bool()
    return rows, (offsets + 1).expand_as(rows), real
