"""``state.pt``: everything a run needs to go on where it was saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlite.errors import DataError


@dataclass(frozen=True)
class State:
    """A run after ``step`` steps. The first three fields say of which run; only the same one may go on from it."""

    recipe: str  # as JSON
    total: int  # steps of the whole run
    plan: str  # digest of the network's configuration and the amount of data
    step: int
    stage: int
    network: dict[str, Tensor]
    teacher: dict[str, Tensor] | None
    optimizers: list[dict[str, Any]]


def write_state(path: Path, state: State) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".pt.part")
    try:
        torch.save(vars(state), part)
        part.replace(path)
    except (OSError, RuntimeError):
        part.unlink(missing_ok=True)
        raise


def read_state(path: Path) -> State | None:
    """None if there is no such file."""
    if not path.exists():
        return None
    try:
        return State(**torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises what it meets
        raise DataError(f"{path} cannot be read ({error}). Delete it to train from the start.") from None
