"""Captured blocks on disk: safetensors shards, a manifest with checksums, writing that can be resumed.

A shard is complete or absent, and the manifest names only complete ones; a killed or failed run loses at most the
shard it was filling.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from dlite.errors import DataError
from dlite.features.anchors import choose_anchors, legal_anchors
from dlite.features.blocks import Blocks, merge, window
from dlite.features.capture import Capturer, CaptureSettings
from dlite.target.base import TargetInfo
from dlite.types import Conversation

MANIFEST = "manifest.json"
SHARD_BLOCKS = 8192
POSITIONS = ("taps", "place", "following", "last")  # the fields of blocks that are shared by position
STORE_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Estimate:
    """What a store will take, before it is written."""

    conversations: int
    anchors: int
    bytes: int


def estimate(
    conversations: Iterable[Conversation], settings: CaptureSettings, hidden_size: int, dtype: str
) -> Estimate:
    """What ``write_store`` will take, from the masks alone: an upper bound that counts shared positions once."""
    count = anchors = positions = lasts = names = 0
    for conversation in conversations:
        wrote = conversation.wrote[: settings.max_length]
        legal = legal_anchors(wrote, settings.K, whole_blocks=settings.whole_blocks)
        chosen = choose_anchors(legal, settings.anchors_per_sequence, f"{settings.seed}-0-{conversation.id}")
        gaps = [b - a for a, b in pairwise(chosen)]
        count += 1
        anchors += len(chosen)
        names += len(json.dumps(conversation.id)) + 2
        positions += sum(min(gap, settings.history + 1) for gap in [*chosen[:1], *gaps])
        lasts += sum(min(gap, settings.K) for gap in [*gaps, *[len(wrote) - a for a in chosen[-1:]]])
    row = hidden_size * torch.empty(0, dtype=STORE_DTYPES[dtype]).element_size()
    blocks = anchors * 8 * (4 + 2 * settings.K) + positions * (len(settings.taps) * row + 16) + lasts * row
    return Estimate(count, anchors, blocks + names + 2048 * (1 + anchors // SHARD_BLOCKS))


def write_store(
    folder: Path,
    capturer: Capturer,
    conversations: Iterable[Conversation],
    *,
    dtype: str = "float16",
    shard_blocks: int = SHARD_BLOCKS,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Capture every conversation not yet stored; returns the number of blocks added. ``progress`` gets blocks so far."""
    manifest = _open_manifest(folder, capturer.target.info, capturer.settings, dtype)
    done = {name for shard in manifest["shards"] for name in shard["conversations"]}
    pending: list[Blocks] = []
    names: list[str] = []
    added = 0
    for conversation in conversations:
        if conversation.id in done:
            continue
        blocks = capturer.capture(conversation)
        names.append(conversation.id)
        if blocks is not None:
            kind = STORE_DTYPES[dtype]
            limit = torch.finfo(kind).max
            small = {k: getattr(blocks, k).clamp(-limit, limit).to(kind) for k in ("taps", "last")}
            pending.append(replace(blocks, **small))
            added += len(blocks)
        if sum(map(len, pending)) >= shard_blocks:
            _write_shard(folder, manifest, pending, names)
            pending, names = [], []
        if progress:
            progress(added)
    if names:
        _write_shard(folder, manifest, pending, names)
    return added


class Store:
    """Random access to the blocks of one or more folders, memory-mapped; a folder named twice counts twice.

    ``taps`` are the ones to hand out, by default all that were captured. Errors: ``DataError`` for damage, folders that
    do not fit each other, or taps that were not captured, with what to do.
    """

    def __init__(self, *folders: Path, taps: tuple[int, ...] | None = None, verify: bool = False) -> None:
        self.folders = folders
        manifests = [_read_manifest(folder) for folder in folders]
        self.manifest = {k: v for k, v in manifests[0].items() if k != "shards"}
        self.shards: list[Blocks] = []
        for folder, manifest in zip(folders, manifests, strict=True):
            for key in ("target", "tokenizer_hash", "settings"):
                if manifest[key] != self.manifest[key]:
                    raise DataError(
                        f"the feature stores {folders[0]} and {folder} differ in {key}: {self.manifest[key]} and "
                        f"{manifest[key]}. Capture both with the same recipe."
                    )
            self.shards += [_map_shard(folder, entry, verify) for entry in manifest["shards"] if entry["blocks"]]
        if not self.shards:
            raise DataError(f"the feature store {folders[0]} has no blocks. Expected some. Run: dlite features")
        captured = self.manifest["settings"]["taps"]
        if taps is not None and not set(taps) <= set(captured):
            raise DataError(
                f"the feature store {folders[0]} has the taps {captured}; {list(taps)} are asked for. Capture again with the "
                "recipe that is to be trained."
            )
        self._columns = None if taps in (None, tuple(captured)) else [captured.index(tap) for tap in taps or ()]
        self._starts = torch.tensor([0, *(len(s) for s in self.shards)]).cumsum(0)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, index: Tensor, history: int = 0) -> Blocks:
        """The blocks with these numbers, [N], fp32, and ``history`` positions before each pivot where stored."""
        shard_of = torch.searchsorted(self._starts, index, right=True) - 1
        parts = [
            _select(self.shards[s], index[shard_of == s] - self._starts[s], history, self._columns)
            for s in torch.unique(shard_of).tolist()
        ]
        return merge(parts)


def _select(shard: Blocks, index: Tensor, history: int, columns: list[int] | None) -> Blocks:
    chosen = {f.name: getattr(shard, f.name)[index] for f in fields(Blocks) if f.name not in POSITIONS}
    wanted = chosen["pivot"][:, None]
    if history:
        rows, _, real = window(replace(shard, pivot=chosen["pivot"]), history)
        wanted = torch.cat([wanted, torch.where(real, rows, wanted)], 1)
    taps, pivot = torch.unique(wanted, return_inverse=True)
    last, rows = torch.unique(chosen["rows"], return_inverse=True)
    states = shard.taps[taps]
    return Blocks(
        **chosen | {"pivot": pivot[:, 0], "rows": rows},
        taps=(states if columns is None else states[:, columns]).float(),
        place=shard.place[taps],
        following=shard.following[taps],
        last=shard.last[last].float(),
    )


def _open_manifest(folder: Path, info: TargetInfo, settings: CaptureSettings, dtype: str) -> dict[str, Any]:
    wanted = {
        "version": 1,
        "target": info.name,
        "tokenizer_hash": info.tokenizer_hash,
        "dtype": dtype,
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(settings).items() if k != "chunk"},
    }
    if (folder / MANIFEST).exists():
        found = _read_manifest(folder)
        for key, value in wanted.items():
            if found[key] != value:
                raise DataError(
                    f"the feature store {folder} was begun with {key} {found[key]}. This run has {value}. Use the same "
                    "settings, or another folder."
                )
        return found
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {**wanted, "shards": []}
    _write_whole(folder / MANIFEST, json.dumps(manifest).encode())
    return manifest


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / MANIFEST).read_text())  # type: ignore[no-any-return]
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(
            f"{folder} is not a feature store ({error}). Expected a folder made by: dlite features"
        ) from None


def _write_shard(folder: Path, manifest: dict[str, Any], parts: list[Blocks], names: list[str]) -> None:
    blocks = merge(parts) if parts else None
    entry: dict[str, Any] = {"file": None, "blocks": 0, "conversations": names, "sha256": ""}
    if blocks is not None:
        data = save({f.name: getattr(blocks, f.name).contiguous() for f in fields(Blocks)})
        entry["file"] = f"shard-{len(manifest['shards']):05d}.safetensors"
        entry["blocks"], entry["sha256"] = len(blocks), hashlib.sha256(data).hexdigest()
        _write_whole(folder / entry["file"], data)
    manifest["shards"].append(entry)
    _write_whole(folder / MANIFEST, json.dumps(manifest).encode())


def _write_whole(path: Path, data: bytes) -> None:
    unfinished = path.with_suffix(path.suffix + ".part")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        full = "the disk is full" if error.errno == errno.ENOSPC else (error.strerror or str(error))
        raise DataError(
            f"{path} cannot be written: {full}. The shards before it are intact. Make room and run the same command "
            "again: it goes on where it stopped."
        ) from None


def _map_shard(folder: Path, entry: dict[str, Any], verify: bool) -> Blocks:
    path = folder / entry["file"]
    try:
        if verify and hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            raise ValueError("its checksum is not the one in the manifest")
        tensors = map_safetensors(path)
        if "following" not in tensors:  # written before history needed it: there every position is a pivot
            tensors["following"] = torch.zeros_like(tensors["place"]).index_copy(0, tensors["pivot"], tensors["anchor"])
        return Blocks(**tensors)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise DataError(
            f"the shard {path} is missing or damaged ({error}). Delete it and its entry in {MANIFEST}, and run "
            "dlite features again to capture its conversations anew."
        ) from None


def map_safetensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, memory-mapped: rows are read from disk only when they are used."""
    kinds = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length + 8 > size:
            raise ValueError("it is cut short")
        header = json.loads(file.read(length))
    storage = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=size)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, (start, end) = kinds[entry["dtype"]], entry["data_offsets"]
        if 8 + length + end > size:
            raise ValueError("it is cut short")
        empty = torch.empty(0, dtype=kind)
        tensors[name] = empty.set_(
            storage,
            (8 + length + start) // empty.element_size(),
            entry["shape"],  # type: ignore[call-overload]
        )
    return tensors
