"""Our own layout, for every drafter but DLite: ``config.json`` names the drafter and gives its config as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from dlite.checkpoint.files import CONFIG, Described, Provenance, take_vocabulary
from dlite.drafters import network_class
from dlite.errors import CheckpointError, ConfigError
from dlite.target.base import TargetInfo

NAME = "a drafter that dlite train wrote"
KEY = "dlite_drafter"


def fits(data: Mapping[str, Any]) -> bool:
    """Is it this layout?"""
    return KEY in data


def write(network: Any, info: TargetInfo) -> dict[str, Any]:
    """The config of a drafter."""
    values = {name: value for name, value in asdict(network.config).items() if name != "draft_vocab"}
    return {KEY: network.name, "config": values, "target": info.name, "tokenizer_hash": info.tokenizer_hash}


def read(data: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path, info: TargetInfo | None) -> Described:
    """The network a config describes, and where it comes from. Errors: ``CheckpointError``."""
    vocab = take_vocabulary(tensors)
    try:
        kind = network_class(str(data[KEY]))
        values = dict(data["config"])
        unknown = sorted(set(values) - {field.name for field in fields(kind.Config)})
        if unknown:
            raise ValueError(f"unknown keys {unknown}")
        config = TypeAdapter(kind.Config).validate_python({**values, "draft_vocab": vocab})
    except (KeyError, ValueError, TypeError, ValidationError, ConfigError) as error:
        raise CheckpointError(
            f"{folder / CONFIG} cannot be used ({_reason(error)}). Expected a drafter written by this version of dlite."
        ) from None
    provenance = Provenance(str(data.get("target", "")), str(data.get("tokenizer_hash", "")))
    return Described(kind(config), provenance)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0]
