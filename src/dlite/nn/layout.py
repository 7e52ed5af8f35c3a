"""Which slot of a block predicts which token, and where it stands: the one place training and decoding share.

Positions are local and start anew each round: context 0, anchor 0, placeholder i at i (2610.23787, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dlite.errors import TargetError


@dataclass(frozen=True)
class BlockLayout:
    """A block of ``group`` known tokens (the anchor last) followed by placeholders.

    Two conventions of the field: K placeholders that each predict their own token, or, with ``anchor_predicts``, K-1
    placeholders, where the anchor predicts draft 1 and each placeholder the draft after its own.
    """

    K: int
    group: int = 1
    anchor_predicts: bool = False

    def placeholders(self, K: int | None = None) -> int:
        """Placeholders of a block of K drafts (by default the layout's own)."""
        return (self.K if K is None else K) - self.anchor_predicts

    def query_positions(self, K: int | None = None) -> Tensor:
        """Local positions [group + placeholders]: known tokens at 0, placeholder i at i."""
        own = torch.arange(1, self.placeholders(K) + 1)
        return torch.cat([torch.zeros(self.group, dtype=torch.long), own])

    def drafts(self, hidden: Tensor) -> Tensor:
        """The rows that predict drafts 1..K: hidden [N,group+placeholders,D] -> [N,K,D]."""
        return hidden[:, self.group - self.anchor_predicts :]


def default_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """First layer, last layer, the other ``count - 2`` evenly from 1 to N-2 by rounding.

    N = 36, count = 12 gives 0,1,5,8,12,16,19,23,27,30,34,35, the published choice.
    """
    if not 3 <= count <= num_layers:
        raise TargetError(
            f"{count} taps asked of a target with {num_layers} layers. Expected 3 to {num_layers}. Set num_taps so."
        )
    inner = count - 2
    step = (num_layers - 3) / max(inner - 1, 1)
    return (0, *(int(1 + i * step + 0.5) for i in range(inner)), num_layers - 1)


def shallow_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """``count`` layers round(1 + i (N-4)/(n-1)): DFlash's choice, without the first and the last two (2602.06036)."""
    if not 2 <= count <= num_layers - 3:
        raise TargetError(
            f"{count} taps asked of a target with {num_layers} layers. Expected 2 to {num_layers - 3}. Set num_taps so."
        )
    return tuple(int(1 + i * (num_layers - 4) / (count - 1) + 0.5) for i in range(count))


def spread_taps(num_layers: int, count: int) -> tuple[int, ...]:
    """``count`` layers evenly from 1 to N-4 by rounding: with three, EAGLE-3's 1, N/2 - 1, N-4 (2503.01840)."""
    if not 2 <= count <= num_layers - 4:
        raise TargetError(
            f"{count} taps asked of a target with {num_layers} layers. Expected 2 to {num_layers - 4}. Set num_taps so."
        )
    return tuple(int(1 + i * (num_layers - 5) / (count - 1) + 0.5) for i in range(count))
