"""Drafters on disk: a folder with ``config.json`` and ``model.safetensors``, read and written with strict keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dlite.checkpoint import dlite, own
from dlite.checkpoint.files import (
    CONFIG,
    WEIGHTS,
    Provenance,
    check_tensors,
    read_config,
    read_tensors,
    write_folder,
)
from dlite.errors import CheckpointError
from dlite.target.base import TargetInfo

__all__ = ["CONFIG", "WEIGHTS", "Provenance", "check_fit", "load_drafter", "save_drafter"]
DRAFT_VOCAB = "draft_vocab"


def save_drafter(
    drafter: Any, folder: Path, info: TargetInfo, *, dtype: torch.dtype = torch.float32, published: bool = False
) -> None:
    """Write a drafter: a DLite in the published layout (``published`` without our additions), others in our own."""
    tensors = {k: v.detach().to(dtype).contiguous() for k, v in drafter.state_dict().items()}
    if drafter.config.draft_vocab is not None:
        tensors[DRAFT_VOCAB] = torch.tensor(drafter.config.draft_vocab)
    if drafter.name == "dlite" and not drafter.config.history_window:
        config = dlite.write(drafter, info, dtype, published=published)
    elif published:
        raise CheckpointError(f"there is no published layout to write a {drafter.name} with. Leave published out.")
    else:
        config = own.write(drafter, info)
    write_folder(folder, config, tensors)


def load_drafter(folder: str | Path, info: TargetInfo | None = None) -> tuple[Any, Provenance]:
    """Read a drafter; with ``info``, refuse one that does not fit that target. Errors: ``CheckpointError``."""
    folder = Path(folder)
    data = read_config(folder)
    tensors = read_tensors(folder)
    vocab = tuple(tensors.pop(DRAFT_VOCAB).tolist()) if DRAFT_VOCAB in tensors else None
    with torch.device("meta"):
        network, provenance = _layout(data, folder).read(data, folder, vocab)
    if info is not None:
        check_fit(network.config, provenance, info)
    check_tensors(network, tensors, folder)
    network.load_state_dict({k: v.float() for k, v in tensors.items()}, assign=True)
    return network, provenance


def check_fit(config: Any, provenance: Provenance, info: TargetInfo) -> None:
    """Refuse a drafter made for another target, naming the first thing that differs."""
    pairs = [
        ("layers", config.num_target_layers, info.num_layers),
        ("hidden size", config.backbone.hidden_size, info.hidden_size),
        ("vocabulary", config.vocab_size, info.vocab_size),
        ("tokenizer hash", provenance.tokenizer_hash or info.tokenizer_hash, info.tokenizer_hash),
    ]
    for what, found, expected in pairs:
        if found != expected:
            raise CheckpointError(
                f"this drafter was made for {provenance.target or 'a target'} with {what} {found}; {info.name} has "
                f"{expected}. Pass the target it was trained for, or train a drafter for {info.name}."
            )
    if max(config.taps) >= info.num_layers:
        raise CheckpointError(
            f"taps {config.taps} do not fit a {info.num_layers}-layer target. Expected every tap < {info.num_layers}. "
            "Pass the target it was trained for."
        )


def _layout(data: dict[str, Any], folder: Path) -> Any:
    if own.KEY in data:
        return own
    if data.get("architectures") == [dlite.ARCHITECTURE]:
        return dlite
    raise CheckpointError(
        f"{folder} holds {data.get('architectures')}. Expected architectures [{dlite.ARCHITECTURE!r}] or a drafter that "
        "dlite train wrote. Give one of these."
    )
