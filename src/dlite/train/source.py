"""Where training blocks come from: a store on disk, or the target itself while training runs.

Batch number i is a function of the seed and i alone, so a resumed run sees exactly what an unbroken one would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from dlite.errors import DataError
from dlite.features.blocks import Blocks, merge
from dlite.features.capture import Capturer
from dlite.features.store import Store
from dlite.types import Conversation


class Source(Protocol):
    """Endless batches of blocks."""

    steps_per_epoch: int

    def batch(self, number: int, rank: int, world: int, history: int) -> Blocks:
        """This rank's share of batch ``number``, with ``history`` positions before each pivot."""


class StoreSource:
    """Blocks drawn without replacement from a store, ``neighbours`` at a time: these share most of their history."""

    def __init__(self, store: Store, batch_blocks: int, seed: int, neighbours: int = 1) -> None:
        if len(store) < batch_blocks:
            raise DataError(
                f"the store has {len(store)} blocks, fewer than one batch of {batch_blocks}. Capture more, or lower "
                "train.batch_blocks."
            )
        self.store, self.batch_blocks, self.seed, self.neighbours = store, batch_blocks, seed, neighbours
        self.steps_per_epoch = len(store) // batch_blocks
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def batch(self, number: int, rank: int, world: int, history: int) -> Blocks:
        epoch, step = divmod(number, self.steps_per_epoch)
        if self._order[0] != epoch:
            first = _permutation(-(-len(self.store) // self.neighbours), self.seed, epoch) * self.neighbours
            order = (first[:, None] + torch.arange(self.neighbours)).flatten()
            self._order = (epoch, order[order < len(self.store)])
        index = self._order[1][step * self.batch_blocks : (step + 1) * self.batch_blocks]
        return self.store.take(index[rank::world].contiguous(), history)


class OnlineSource:
    """Conversations captured as they are needed; nothing is stored."""

    def __init__(
        self, capturer: Capturer, conversations: Sequence[Conversation], batch_sequences: int, seed: int
    ) -> None:
        usable = [c for c in conversations if capturer.anchors(c)]
        if len(usable) < batch_sequences:
            raise DataError(
                f"there are {len(usable)} conversations with two tokens in a row that the target wrote, fewer than one batch "
                f"of {batch_sequences}. Regenerate more, or lower train.batch_sequences."
            )
        self.capturer, self.conversations = capturer, usable
        self.batch_sequences, self.seed = batch_sequences, seed
        self.steps_per_epoch = len(usable) // batch_sequences

    def batch(self, number: int, rank: int, world: int, history: int) -> Blocks:
        epoch, step = divmod(number, self.steps_per_epoch)
        order = _permutation(len(self.conversations), self.seed, epoch)
        chosen = order[step * self.batch_sequences : (step + 1) * self.batch_sequences][rank::world].tolist()
        parts = (self.capturer.capture(self.conversations[i], epoch) for i in chosen)
        return merge([part for part in parts if part is not None])


def _permutation(size: int, seed: int, epoch: int) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
