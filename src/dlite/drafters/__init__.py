"""Drafters by name. Adding one is a file and a line in ``TABLE``; packages outside use the entry-point group."""

from __future__ import annotations

import difflib
import importlib
import inspect
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlite.errors import ConfigError, DliteError

if TYPE_CHECKING:
    from dlite.drafters.base import Drafter
    from dlite.target.base import Target

# name -> "module:class". A class with a static ``configure`` has weights: it is trained, and loaded from a folder.
TABLE = {
    "none": "dlite.drafters.none:NoDrafter",
    "dlite": "dlite.drafters.dlite:DLite",
    "medusa": "dlite.drafters.medusa:Medusa",
    "lstm": "dlite.drafters.lstm:LSTM",
    "draft_model": "dlite.drafters.draft_model:DraftModel",
    "dflash": "dlite.drafters.dflash:DFlash",
    "dflash2": "dlite.drafters.dflash2:DFlash2",
    "dspark": "dlite.drafters.dspark:DSpark",
    "dflow": "dlite.drafters.dflow:DFlow",
    "eagle3": "dlite.drafters.eagle3:Eagle3",
    "mtp": "dlite.drafters.mtp:MTP",
    "ngram": "dlite.drafters.ngram:NGram",
    "suffix": "dlite.drafters.suffix:Suffix",
    "hybrid": "dlite.drafters.hybrid:Hybrid",
}
SHIPPED = {"smollm2-135m": "smollm2-135m-dlite"}  # target -> folder in dlite/shipped


def drafter_class(name: str) -> Any:
    """The class behind a name of the table or of an installed package. Errors: ``DliteError`` listing the names."""
    known = TABLE | {point.name: point.value for point in entry_points(group="dlite.drafters")}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DliteError(f"there is no drafter {name!r}. Expected one of {', '.join(sorted(known))}.{hint}")
    module, _, maker = known[name].partition(":")
    return getattr(importlib.import_module(module), maker)


def network_class(name: str) -> Any:
    """The class of a drafter that has weights. Errors: ``ConfigError``."""
    try:
        found = drafter_class(name)
    except DliteError as error:
        raise ConfigError(str(error)) from None
    if not hasattr(found, "configure"):
        raise ConfigError(f"the drafter {name!r} has no weights to train. Use it as it is: --drafter {name}")
    return found


def load_drafter(name: str, target: Target) -> Drafter:
    """A drafter ready to decode: ``shipped``, a folder, or the name of one without weights (some as ``name:argument``).

    Errors: ``DliteError`` and ``CheckpointError``, saying what was expected.
    """
    folder = shipped_folder(target) if name == "shipped" else Path(name)
    if not folder.exists():
        return _made(name, target)
    from dlite.checkpoint import check_copies
    from dlite.checkpoint import load_drafter as load_folder

    drafter, provenance = load_folder(folder, target.info)
    check_copies(provenance, target, drafter.config.draft_vocab)
    return drafter.attach(target).to(target.device, target.dtype).freeze()  # type: ignore[no-any-return]


def _made(name: str, target: Target) -> Drafter:
    kind, colon, argument = name.partition(":")
    maker = drafter_class(kind)
    if hasattr(maker, "configure"):
        raise DliteError(f"a {kind} has weights. Expected its folder, made by dlite train. Give the folder's path.")
    make = getattr(maker, "for_target", None)
    if not colon:
        return make(target) if make else maker()  # type: ignore[no-any-return]
    if make is None or "argument" not in inspect.signature(make).parameters:
        raise DliteError(
            f"the drafter {kind!r} takes nothing behind its name, but got {argument!r}. Use: --drafter {kind}"
        )
    return make(target, argument)  # type: ignore[no-any-return]


def shipped_folder(target: Target) -> Path:
    """The drafter that comes with dlite for this target."""
    if target.info.name not in SHIPPED:
        raise DliteError(
            f"no drafter ships with dlite for {target.info.name!r}. Shipped: {', '.join(SHIPPED)}. Train one with: "
            "dlite train RECIPE"
        )
    return Path(__file__).parent.parent / "shipped" / SHIPPED[target.info.name]
