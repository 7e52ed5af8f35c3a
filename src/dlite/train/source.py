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
    """Blocks drawn without replacement from a store."""

    def __init__(self, store: Store, batch_blocks: int, seed: int) -> None:
        if len(store) < batch_blocks:
            raise DataError(
                f"the store has {len(store)} blocks, fewer than one batch of {batch_blocks}. Capture more, or lower "
                "train.batch_blocks."
            )
        self.store, self.batch_blocks, self.seed = store, batch_blocks, seed
        self.steps_per_epoch = len(store) // batch_blocks
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))

    def batch(self, number: int, rank: int, world: int, history: int) -> Blocks:
        epoch, step = divmod(number, self.steps_per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, _permutation(len(self.store), self.seed, epoch))
        index = self._order[1][step * self.batch_blocks : (step + 1) * self.batch_blocks]
        return self.store.take(index[rank::world].contiguous(), history)


class OnlineSource:
    """Conversations captured as they are needed; nothing is stored."""

    def __init__(
        self, capturer: Capturer, conversations: Sequence[Conversation], batch_sequences: int, seed: int
    ) -> None:
        if len(conversations) < batch_sequences:
            raise DataError(
                f"there are {len(conversations)} conversations, fewer than one batch of {batch_sequences}. Regenerate more, "
                "or lower train.batch_sequences."
            )
        self.capturer, self.conversations = capturer, conversations
        self.batch_sequences, self.seed = batch_sequences, seed
        self.steps_per_epoch = len(conversations) // batch_sequences

    def batch(self, number: int, rank: int, world: int, history: int) -> Blocks:
        epoch, step = divmod(number, self.steps_per_epoch)
        order = _permutation(len(self.conversations), self.seed, epoch)
        chosen = order[step * self.batch_sequences : (step + 1) * self.batch_sequences][rank::world].tolist()
        parts = [self.capturer.capture(self.conversations[i], epoch) for i in chosen]
        found = [p for p in parts if p is not None]
        if not found:
            raise DataError(
                f"batch {number} has no legal anchor: none of its conversations has two tokens in a row that the target "
                "wrote. Check the regenerated data."
            )
        return merge(found)


def _permutation(size: int, seed: int, epoch: int) -> torch.Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
