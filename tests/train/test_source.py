"""Batch number i is a function of the seed and i; an epoch takes each block once."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from dlite.errors import DataError
from dlite.features.blocks import Blocks
from dlite.features.capture import Capturer
from dlite.features.store import Store, write_store
from dlite.train.source import OnlineSource, Source, StoreSource
from tests.features.support import SETTINGS, TOY
from tests.train.support import talks


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("store")
    write_store(folder, Capturer(TOY, SETTINGS), talks(), dtype="float32", shard_blocks=40)
    return Store(folder)


def of(kind: str, store: Store, seed: int = 0) -> Source:
    return StoreSource(store, 20, seed) if kind == "store" else OnlineSource(Capturer(TOY, SETTINGS), talks(), 3, seed)


def contents(blocks: Blocks) -> list[tuple[int, ...]]:
    rows = torch.cat(
        [blocks.anchor[:, None], blocks.before[:, None], blocks.place[blocks.pivot][:, None], blocks.labels], 1
    )
    return [tuple(row) for row in rows.tolist()]


@pytest.mark.parametrize("kind", ["store", "online"])
def test_batches_depend_on_their_number_and_the_seed_alone(kind: str, store: Store) -> None:
    one, two = of(kind, store), of(kind, store)
    numbers = [0, 1, one.steps_per_epoch, one.steps_per_epoch + 1, 7]
    wanted = {i: one.batch(i, 0, 1, 0) for i in numbers}
    for i in reversed(numbers):  # asked for in another order
        assert all(
            torch.equal(getattr(two.batch(i, 0, 1, 0), f.name), getattr(wanted[i], f.name)) for f in fields(Blocks)
        )
    assert contents(of(kind, store, seed=1).batch(0, 0, 1, 0)) != contents(wanted[0])
    assert contents(wanted[0]) != contents(wanted[one.steps_per_epoch])


def test_an_epoch_of_a_store_takes_no_block_twice(store: Store) -> None:
    source = of("store", store)
    asked: list[int] = []
    source.store.take = lambda index, history: asked.extend(index.tolist())  # type: ignore[method-assign]
    try:
        for epoch in range(2):
            asked.clear()
            for step in range(source.steps_per_epoch):
                source.batch(epoch * source.steps_per_epoch + step, 0, 1, 0)
            assert len(asked) == len(set(asked)) == source.steps_per_epoch * 20
            assert set(asked) <= set(range(len(store)))
    finally:
        del source.store.take


def test_an_epoch_online_reads_no_conversation_twice() -> None:
    seen: list[tuple[str, int]] = []

    class Noting(Capturer):
        def capture(self, conversation, epoch=0):  # type: ignore[no-untyped-def]
            seen.append((conversation.id, epoch))
            return super().capture(conversation, epoch)

    source = OnlineSource(Noting(TOY, SETTINGS), talks(), 4, 0)
    for number in range(4):
        source.batch(number, 0, 1, 0)
    assert sorted(seen) == [(f"c{i}", epoch) for i in range(8) for epoch in range(2)]


@pytest.mark.parametrize("kind", ["store", "online"])
def test_ranks_share_a_batch(kind: str, store: Store) -> None:
    source = of(kind, store)
    whole = contents(source.batch(1, 0, 1, 0))
    shares = [contents(source.batch(1, rank, 2, 0)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == sorted(whole)
    assert shares[0]
    assert shares[1]


def test_too_little_data_says_so(store: Store) -> None:
    with pytest.raises(DataError, match=r"has \d+ blocks, fewer than one batch of 9999"):
        StoreSource(store, 9999, 0)
    with pytest.raises(DataError, match="there are 8 conversations with two tokens"):
        OnlineSource(Capturer(TOY, SETTINGS), talks(), 9, 0)
    silent = [replace(c, wrote=(False,) * len(c.ids)) for c in talks()]
    with pytest.raises(DataError, match="there are 0 conversations with two tokens"):
        OnlineSource(Capturer(TOY, SETTINGS), silent, 2, 0)


def test_conversations_without_an_anchor_are_passed_over() -> None:
    """A batch that happened to hold only such ones ended the run."""
    silent = [replace(c, id=f"silent-{c.id}", wrote=(False,) * len(c.ids)) for c in talks()]
    source = OnlineSource(Capturer(TOY, SETTINGS), [*silent, *talks()], 1, 0)
    assert source.steps_per_epoch == 8
    assert all(len(source.batch(number, 0, 1, 0)) for number in range(16))


def test_neighbours_come_together_and_every_block_once(store: Store) -> None:
    source = StoreSource(store, 8, 0, neighbours=4)
    rows = [source.batch(number, 0, 1, 0) for number in range(source.steps_per_epoch)]
    seen = [(int(b.anchor[i]), *b.labels[i].tolist()) for b in rows for i in range(len(b))]
    assert sum(map(len, rows)) == 8 * source.steps_per_epoch
    order = source._order[1]
    assert sorted(order.tolist()) == list(range(len(store)))
    assert all((group.diff() == 1).all() for group in order[: len(order) // 4 * 4].view(-1, 4) if group[-1] % 4 == 3)
    assert len(seen) == 8 * source.steps_per_epoch
    assert not torch.equal(order, torch.arange(len(store)))
