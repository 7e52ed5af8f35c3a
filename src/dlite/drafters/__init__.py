"""Drafters by name. Adding one is a file and a line in ``TABLE``; packages outside use the entry-point group."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from dlite.errors import DliteError

if TYPE_CHECKING:
    from dlite.drafters.base import Drafter
    from dlite.target.base import Target

# name -> "module:function" that makes the drafter for a target without a checkpoint
TABLE = {"none": "dlite.drafters.none:NoDrafter"}
SHIPPED = {"smollm2-135m": "smollm2-135m-dlite"}  # target -> folder in dlite/shipped


def load_drafter(name: str, target: Target) -> Drafter:
    """A drafter ready to decode: ``none``, ``shipped``, a folder, or a name from the table or an installed package.

    Errors: ``DliteError`` and ``CheckpointError``, saying what was expected.
    """
    known = TABLE | {point.name: point.value for point in entry_points(group="dlite.drafters")}
    if name in known:
        module, _, maker = known[name].partition(":")
        return getattr(importlib.import_module(module), maker)()  # type: ignore[no-any-return]
    folder = shipped_folder(target) if name == "shipped" else Path(name)
    if not folder.exists():
        raise DliteError(
            f"there is no drafter {name!r}. Expected a drafter folder, 'shipped', or one of {', '.join(sorted(known))}."
        )
    from dlite.checkpoint import load_drafter as load_folder

    drafter, _ = load_folder(folder, target.info)
    return drafter.attach(target).to(target.device, target.dtype).freeze()


def shipped_folder(target: Target) -> Path:
    """The drafter that comes with dlite for this target."""
    if target.info.name not in SHIPPED:
        raise DliteError(
            f"no drafter ships with dlite for {target.info.name!r}. Shipped: {', '.join(SHIPPED)}. Train one with: "
            "dlite train RECIPE"
        )
    return Path(__file__).parent.parent / "shipped" / SHIPPED[target.info.name]
