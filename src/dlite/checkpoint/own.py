"""Our own layout, for every drafter but DLite: ``config.json`` names the drafter and gives its config as it is."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dlite.checkpoint.files import CONFIG, Provenance
from dlite.drafters import network_class
from dlite.errors import CheckpointError, ConfigError
from dlite.target.base import TargetInfo

KEY = "dlite_drafter"


def write(network: Any, info: TargetInfo) -> dict[str, Any]:
    """The config of a drafter."""
    values = {name: value for name, value in asdict(network.config).items() if name != "draft_vocab"}
    return {KEY: network.name, "config": values, "target": info.name, "tokenizer_hash": info.tokenizer_hash}


def read(data: dict[str, Any], folder: Path, vocab: tuple[int, ...] | None) -> tuple[Any, Provenance]:
    """The network a config describes, and where it comes from. Errors: ``CheckpointError``."""
    try:
        kind = network_class(str(data[KEY]))
        values = dict(data["config"])
        unknown = sorted(set(values) - {field.name for field in fields(kind.Config)})
        if unknown:
            raise ValueError(f"unknown keys {unknown}")
        config = TypeAdapter(kind.Config).validate_python({**values, "draft_vocab": vocab})
    except (KeyError, ValueError, TypeError, ValidationError, ConfigError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{folder / CONFIG} cannot be used ({reason}). Expected a drafter written by this version of dlite."
        ) from None
    return kind(config), Provenance(str(data.get("target", "")), str(data.get("tokenizer_hash", "")))
