"""Drafters on disk: a folder with ``config.json`` and ``model.safetensors``, read and written with strict keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dlite.checkpoint import deepspec, dlite, own, speculators, zlab
from dlite.checkpoint.calibration import read_temperatures
from dlite.checkpoint.files import (
    CONFIG,
    DRAFT_VOCAB,
    WEIGHTS,
    Described,
    Provenance,
    check_tensors,
    read_config,
    read_tensors,
    write_folder,
)
from dlite.checkpoint.published import check_copies
from dlite.errors import CheckpointError
from dlite.target.base import TargetInfo

__all__ = ["CONFIG", "WEIGHTS", "Provenance", "check_copies", "check_fit", "load_drafter", "save_drafter"]


class Layout(Protocol):
    """A way to lay out a drafter folder: one module each."""

    NAME: str

    def fits(self, data: Mapping[str, Any]) -> bool:
        """Is it this layout?"""

    def read(
        self, data: dict[str, Any], tensors: dict[str, Tensor], folder: Path, info: TargetInfo | None
    ) -> Described:
        """The network a config describes; takes out of ``tensors`` what is not of the network."""


LAYOUTS: tuple[Layout, ...] = (own, dlite, zlab, deepspec, speculators)


def save_drafter(
    drafter: Any, folder: Path, info: TargetInfo, *, dtype: torch.dtype = torch.float32, published: bool = False
) -> None:
    """Write a drafter: a DLite in the published layout (``published`` without our additions), others in our own."""
    tensors = {k: v.detach().to(dtype).contiguous() for k, v in drafter.state_dict().items()}
    if drafter.config.draft_vocab is not None:
        tensors[DRAFT_VOCAB] = torch.tensor(drafter.config.draft_vocab)
    if drafter.name == "dlite" and dlite.can_say(drafter.config):
        config = dlite.write(drafter, info, dtype, published=published)
    elif published:
        raise CheckpointError(f"there is no published layout to write this {drafter.name} with. Leave published out.")
    else:
        config = own.write(drafter, info)
    write_folder(folder, config, tensors)


def load_drafter(folder: str | Path, info: TargetInfo | None = None) -> tuple[Any, Provenance]:
    """Read a drafter; with ``info``, refuse one that does not fit that target. Errors: ``CheckpointError``.

    What a folder of others repeats of the target stands in ``Provenance.copies``: see ``check_copies``.
    """
    folder = Path(folder)
    data = read_config(folder)
    tensors = read_tensors(folder)
    layout = _layout(data, folder)
    with torch.device("meta"):
        found = layout.read(data, tensors, folder, info)
    network = found.network
    if info is not None:
        check_fit(network.config, found.provenance, info)
    check_tensors(found, tensors, folder)
    names = {name: found.on_disk(name) for name in network.state_dict()}
    network.load_state_dict({ours: tensors[theirs].float() for ours, theirs in names.items()}, assign=True)
    if getattr(network.config, "confidence", False):
        network.temperatures = read_temperatures(folder, network.config.K)
    return network, found.provenance


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


def _layout(data: Mapping[str, Any], folder: Path) -> Layout:
    for layout in LAYOUTS:
        if layout.fits(data):
            return layout
    known = "; ".join(layout.NAME for layout in LAYOUTS)
    raise CheckpointError(f"{folder} holds {data.get('architectures')}. Expected one of: {known}. Give such a folder.")
