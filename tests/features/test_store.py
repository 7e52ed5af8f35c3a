"""Blocks on disk: the same as captured, whole after every accident."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.errors import DataError
from dlite.features.blocks import Blocks, merge
from dlite.features.capture import Capturer, CaptureSettings
from dlite.features.store import MANIFEST, Store, estimate, write_store
from dlite.target.toy import ToyTarget
from dlite.types import Conversation
from tests.features.support import SETTINGS, TOY, conversation, several
from tests.features.test_capture import Broken

TALKS = several(6)


def write(folder: Path, talks: list[Conversation] = TALKS, settings: CaptureSettings = SETTINGS, **options: Any) -> int:
    options = {"dtype": "float32", "shard_blocks": 15} | options
    return write_store(folder, Capturer(TOY, settings), talks, **options)


def read_by(blocks: Blocks) -> list[torch.Tensor]:
    """What each block reads and is trained to say, without row numbers."""
    numbers = (blocks.anchor, blocks.before, blocks.labels, blocks.counted)
    return [blocks.taps[blocks.pivot], blocks.last[blocks.rows], blocks.place[blocks.pivot], *numbers]


def test_stored_blocks_are_the_captured_ones_in_any_order(tmp_path: Path) -> None:
    count = write(tmp_path)
    captured = merge([Capturer(TOY, SETTINGS).capture(c) for c in TALKS])
    store = Store(tmp_path, verify=True)
    assert len(store.shards) == 3
    assert len(store) == count == len(captured)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    shard = torch.searchsorted(store._starts, order, right=True)
    grouped = torch.cat([order[shard == s] for s in shard.unique()])  # a batch has no order, only its blocks
    for found, wanted in zip(read_by(store.take(order)), read_by(captured), strict=True):
        assert torch.equal(found, wanted[grouped])


@pytest.mark.parametrize(("dtype", "rtol"), [("float16", 1e-3), ("bfloat16", 1e-2)])
def test_smaller_numbers_are_close(tmp_path: Path, dtype: str, rtol: float) -> None:
    write(tmp_path, dtype=dtype)
    captured = merge([Capturer(TOY, SETTINGS).capture(c) for c in TALKS])
    found = Store(tmp_path).take(torch.arange(len(captured)))
    for got, wanted in zip(read_by(found), read_by(captured), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-3)


def test_taps_beyond_half_precision_stay_finite(tmp_path: Path) -> None:
    loud = ToyTarget(stop=False)
    loud._table *= 1e5
    write_store(tmp_path, Capturer(loud, SETTINGS), TALKS[:1], dtype="float16")
    taps = Store(tmp_path).take(torch.arange(3)).taps
    assert torch.isfinite(taps).all()
    assert taps.abs().max() == torch.finfo(torch.float16).max


def test_history_is_taken_as_asked(tmp_path: Path) -> None:
    write(tmp_path, settings=replace(SETTINGS, history=4))
    blocks = Store(tmp_path).take(torch.tensor([5, 30]), history=2)
    assert blocks.place.tolist() == [
        p for pivot in blocks.pivot for p in (blocks.place[pivot] + torch.tensor([-2, -1, 0])).tolist()
    ]
    assert len(Store(tmp_path).take(torch.tensor([5, 30])).place) == 2


class Killed(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("after", range(1, len(TALKS) + 1))
def test_a_killed_run_goes_on_without_loss_or_repeat(tmp_path: Path, after: int) -> None:
    def progress(_: int) -> None:
        nonlocal after
        after -= 1
        if not after:
            raise Killed

    write(tmp_path / "unbroken")
    with pytest.raises(Killed):
        write(tmp_path / "killed", progress=progress)
    write(tmp_path / "killed")
    assert files(tmp_path / "killed") == files(tmp_path / "unbroken")
    assert write(tmp_path / "killed") == 0


@pytest.mark.parametrize("failing", [3, 4])  # 1: the first manifest, then a shard and a manifest in turn
def test_a_full_disk_leaves_the_earlier_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    calls, real = 0, os.fsync

    def fsync(number: int) -> None:
        nonlocal calls
        calls += 1
        if calls > failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    write(tmp_path / "unbroken")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(DataError, match="the disk is full. The shards before it are intact"):
            write(tmp_path / "full")
    assert not list((tmp_path / "full").glob("*.part"))
    first = json.loads((tmp_path / "unbroken" / MANIFEST).read_text())["shards"][0]["blocks"]
    assert len(Store(tmp_path / "full", verify=True)) == first
    write(tmp_path / "full")
    assert files(tmp_path / "full") == files(tmp_path / "unbroken")


def test_conversations_without_anchors_are_not_read_again(tmp_path: Path) -> None:
    silent = [replace(c, wrote=(False,) * len(c.ids)) for c in TALKS]
    assert write(tmp_path, silent) == 0
    assert json.loads((tmp_path / MANIFEST).read_text())["shards"][0]["conversations"] == [c.id for c in TALKS]
    with pytest.raises(DataError, match="has no blocks"):
        Store(tmp_path)


def test_a_flipped_bit_is_found_by_its_checksum(tmp_path: Path) -> None:
    write(tmp_path)
    shard = tmp_path / "shard-00001.safetensors"
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    Store(tmp_path)
    with pytest.raises(DataError, match=r"shard-00001.safetensors is missing or damaged \(its checksum"):
        Store(tmp_path, verify=True)


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_cut_shard_is_found_at_once(tmp_path: Path, keep: int) -> None:
    write(tmp_path)
    shard = tmp_path / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(DataError, match="shard-00000.safetensors is missing or damaged"):
        Store(tmp_path)


def test_a_missing_shard_and_a_folder_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a feature store"):
        Store(tmp_path)
    write(tmp_path)
    (tmp_path / "shard-00000.safetensors").unlink()
    with pytest.raises(DataError, match="is missing or damaged"):
        Store(tmp_path)


def test_other_settings_need_another_folder(tmp_path: Path) -> None:
    write(tmp_path)
    for options in ({"settings": replace(SETTINGS, K=4)}, {"dtype": "float16"}):
        with pytest.raises(DataError, match="was begun with (settings|dtype) .* This run has .* or another folder"):
            write(tmp_path, **options)
    write(tmp_path, settings=replace(SETTINGS, chunk=7))  # how it is computed may change


def test_not_a_number_is_never_stored(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="conversation 'c0' gives taps that are not finite"):
        write_store(tmp_path, Capturer(Broken(stop=False), SETTINGS), TALKS)
    assert json.loads((tmp_path / MANIFEST).read_text())["shards"] == []


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "change",
    [{}, {"K": 32, "whole_blocks": False}, {"history": 9}, {"anchors_per_sequence": 6}, {"max_length": 20}],
    ids=["plain", "long blocks", "history", "few anchors", "cut"],
)
def test_the_estimate_is_never_short_and_never_twice_too_long(
    tmp_path: Path, change: dict[str, Any], dtype: str
) -> None:
    settings = replace(SETTINGS, **change)
    talks = [conversation(TOY, f"long-{i}", (9, 25), prompt=5 if change else 40) for i in range(8)]
    wanted = estimate(talks, settings, TOY.info.hidden_size, dtype)
    added = write(tmp_path, talks, settings, dtype=dtype, shard_blocks=10_000)
    size = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert (wanted.conversations, wanted.anchors) == (8, added)
    assert size <= wanted.bytes <= 2 * size


def files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir()}
