"""What every layout shares: reading a folder, and strict comparison of its tensors with what its config asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dlite.errors import CheckpointError

WEIGHTS, CONFIG = "model.safetensors", "config.json"
SHARDS = f"{WEIGHTS}.index.json"
DRAFT_VOCAB = "draft_vocab"


@dataclass(frozen=True)
class Provenance:
    """The target a drafter was trained for; empty strings where a published checkpoint does not say.

    ``copies`` are tensors that must repeat the target's own matrices, which a drafter of ours borrows.
    """

    target: str = ""
    tokenizer_hash: str = ""
    copies: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Described:
    """What a config describes: a network, where it comes from, and how a tensor of the network is called on disk."""

    network: Any
    provenance: Provenance
    on_disk: Callable[[str], str] = str


def read_config(folder: Path) -> dict[str, Any]:
    """The config of a drafter folder. Errors: ``CheckpointError``."""
    if not folder.is_dir():
        raise CheckpointError(f"there is no drafter folder {folder}. Expected a folder with {CONFIG} and {WEIGHTS}.")
    try:
        data = json.loads((folder / CONFIG).read_text())
        if not isinstance(data, dict):
            raise ValueError(f"it holds a JSON {type(data).__name__}, not an object")
        return data
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read ({error}). Expected a drafter folder.") from None


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The weights of a drafter folder. Errors: ``CheckpointError``."""
    file = folder / WEIGHTS
    try:
        if file.exists() or not (folder / SHARDS).exists():
            return load_file(file)
        names = set(json.loads((folder / SHARDS).read_text())["weight_map"].values())
        tensors: dict[str, Tensor] = {}
        for name in sorted(names):
            file = folder / Path(name).name
            tensors |= load_file(file)
        return tensors
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} is missing or damaged ({error}). Expected the drafter's weights. Fetch or train it again."
        ) from None


def take_vocabulary(tensors: dict[str, Tensor]) -> tuple[int, ...] | None:
    """Take out the draft vocabulary of a folder of ours."""
    return tuple(tensors.pop(DRAFT_VOCAB).tolist()) if DRAFT_VOCAB in tensors else None


def write_folder(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a drafter folder; the weights appear whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / f"{WEIGHTS}.part", metadata={"format": "pt"})
    (folder / f"{WEIGHTS}.part").replace(folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def check_tensors(described: Described, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Names and shapes exactly as the config asks for. Errors: ``CheckpointError`` naming the first that differ."""
    expected = {described.on_disk(name): tensor for name, tensor in described.network.state_dict().items()}
    for what, names in (("misses", set(expected) - set(tensors)), ("has unknown", set(tensors) - set(expected))):
        if names:
            raise CheckpointError(
                f"{folder / WEIGHTS} {what} tensors: {', '.join(sorted(names)[:5])}{' ...' if len(names) > 5 else ''}. "
                "Expected exactly those of its config. Weights are never dropped silently."
            )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} has shape {tuple(tensor.shape)}. Its config asks for {tuple(expected[name].shape)}."
            )
