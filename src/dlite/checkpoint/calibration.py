"""``calibration.json`` beside a drafter: the temperatures of its confidence, and how far off it was without and with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlite.errors import CheckpointError

CALIBRATION = "calibration.json"


def write_calibration(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record; ``temperatures`` is what counts."""
    (folder / CALIBRATION).write_text(json.dumps(record, indent=2) + "\n")


def read_temperatures(folder: Path, K: int) -> tuple[float, ...] | None:
    """The temperatures of K positions; None where there is no calibration. Errors: ``CheckpointError``."""
    path = folder / CALIBRATION
    if not path.exists():
        return None
    try:
        found = tuple(float(t) for t in json.loads(path.read_text())["temperatures"])
        if len(found) != K or not all(0 < t < float("inf") for t in found):
            raise ValueError(f"temperatures {found}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} cannot be used ({error}). Expected {K} positive temperatures. Delete it to draft without calibration."
        ) from None
    return found
