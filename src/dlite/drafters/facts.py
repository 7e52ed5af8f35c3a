"""What every drafter of the table is and keeps, for one target and one context length. No weights are made or loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dlite.config import DrafterRecipe, load_recipe, recipe_names
from dlite.drafters import TABLE, drafter_class
from dlite.drafters.base import About
from dlite.errors import DliteError
from dlite.target.base import TargetInfo


@dataclass(frozen=True)
class Facts:
    """One drafter. ``state``: bytes kept for a request between rounds, one more token's share of it first.

    Where bytes cannot be told, ``note`` says why or what is kept. ``about`` is None for a drafter that does not say.
    """

    name: str
    trained: bool
    about: About | None
    state: tuple[int, int] | None
    note: str = ""


def facts(info: TargetInfo, context: int) -> list[Facts]:
    """Every drafter of the table, in its order, with the settings of the recipe of its name, or else the defaults."""
    return [_facts(name, drafter_class(name), info, context) for name in TABLE]


def _facts(name: str, kind: Any, info: TargetInfo, context: int) -> Facts:
    about, trained = getattr(kind, "about", None), hasattr(kind, "configure")
    drafter = None
    note = about.state if about else ""
    if trained:
        recipe = load_recipe(name).drafter if name in recipe_names() else DrafterRecipe(kind=name)
        try:
            config = kind.configure(recipe, info, None)
        except DliteError:
            note = "does not fit"
        else:
            with torch.device("meta"):
                drafter = kind(config)
    elif about and not about.state:
        drafter = kind()
    if drafter is None:
        return Facts(name, trained, about, None, note)
    whole = drafter.state_bytes(context)
    return Facts(name, trained, about, (whole - drafter.state_bytes(context - 1), whole))
