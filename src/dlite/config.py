"""Recipes: TOML files of what a training run is, read strictly, changeable with key=value."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dlite.errors import ConfigError


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DrafterRecipe(_Strict):
    """The network. Widths left out (None) are the target's own.

    ``kind`` is a name from ``dlite drafters``; ``options`` are that drafter's own settings. ``window`` bounds the history
    it keeps: None is none for a drafter that can do without, else all. ``history`` is how many positions before the
    pivot training shows to a drafter that keeps history (at most its window). ``last_tap`` None is what the drafter's own
    paper reads: before or after the target's final norm.
    """

    kind: str = "dlite"
    options: dict[str, Any] = Field(default_factory=dict)
    window: int | None = Field(default=None, ge=1)
    history: int = Field(default=512, ge=1)
    K: int = Field(default=7, ge=1, le=32)
    num_layers: int = Field(default=5, ge=1)
    num_taps: int = Field(default=12, ge=3)
    taps: tuple[int, ...] | None = None
    rank: int = Field(default=320, ge=1)
    intermediate_size: int | None = None
    num_kv_heads: int | None = None
    anchor_group: Literal[1, 2] = 1
    placeholder: Literal["learned", "token"] = "learned"
    mask_token_id: int = 0
    draft_vocab_size: int | None = Field(default=None, ge=16)
    last_tap: Literal["raw", "normed"] | None = None


class FeatureRecipe(_Strict):
    """Which blocks are trained on. The paper: up to 512 anchors a sequence, whole blocks, length 4096."""

    anchors_per_sequence: int = Field(default=512, ge=1)
    whole_blocks: bool = True
    max_length: int = Field(default=4096, ge=8)
    truncated: Literal["leave-out", "keep"] = "leave-out"
    dtype: Literal["float16", "bfloat16", "float32"] = "float16"


class Losses(_Strict):
    """Weights of the loss terms. ``kl_teacher`` needs a teacher stage before; the others look at the target.

    ``confidence`` and ``candidates`` train heads that only some drafters have; ``rounds`` is the expected number of
    decoding rounds a token, a loss of whole blocks.
    """

    ce: float = 0.0
    kl: float = 0.0
    l1: float = 0.0
    kl_teacher: float = 0.0
    confidence: float = 0.0
    candidates: float = 0.0
    rounds: float = 0.0


class StageRecipe(_Strict):
    """One training stage. Its length is ``epochs`` over the data or a number of ``steps``.

    ``window`` > 0 trains the history-keeping teacher with that many fused positions before the pivot; ``from_teacher``
    copies the named parts from the last teacher stage and ``freeze`` keeps parts fixed. ``muon_lr`` is for the matrices
    that Muon trains, ``lr`` for the rest (all, with AdamW).
    """

    name: str
    losses: Losses
    epochs: float | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, ge=1)
    window: int = Field(default=0, ge=0)
    from_teacher: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    lr: float = Field(default=6e-4, gt=0)
    muon_lr: float = Field(default=0.02, gt=0)
    warmup: float = Field(default=0.04, ge=0, lt=1)
    final_lr: float = Field(default=0.0, ge=0, le=1)


class TrainRecipe(_Strict):
    """How steps are taken. ``batch_blocks`` blocks a step from a store, ``batch_sequences`` sequences a step online.

    Position i of a block weighs exp(-(i-1)/gamma), or with ``weights`` "acceptance" the chance, by the drafter as it is,
    that the drafts before it are all accepted (D-PACE). ``neighbours`` blocks that follow each other in a store are taken
    together: a drafter that reads history computes what they share once.
    """

    batch_blocks: int = Field(default=256, ge=1)
    batch_sequences: int = Field(default=32, ge=1)
    accumulate: int = Field(default=1, ge=1)
    gamma: float = Field(default=4.0, gt=0)
    weights: Literal["decay", "acceptance"] = "decay"
    clip: float = Field(default=1.0, gt=0)
    beta2: float = 0.95
    optimizer: Literal["adamw", "muon"] = "adamw"
    precision: Literal["no", "bf16"] = "no"
    seed: int = 0
    save_every: int = Field(default=100, ge=1)
    eval_every: int = Field(default=500, ge=1)
    eval_prompts: int = Field(default=16, ge=0)
    eval_tokens: int = Field(default=64, ge=1)
    short_blocks: float = Field(default=0.0, ge=0, le=1)
    neighbours: int = Field(default=1, ge=1)


class Recipe(_Strict):
    """A whole training run."""

    target: str
    drafter: DrafterRecipe
    features: FeatureRecipe = FeatureRecipe()
    train: TrainRecipe = TrainRecipe()
    stages: tuple[StageRecipe, ...] = Field(min_length=1)


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name (one that ships with dlite) or path, changed by ``section.key=value`` overrides.

    Errors: ``ConfigError`` naming the unknown key and the nearest known one.
    """
    path = Path(name)
    if not path.suffix:
        shipped = files("dlite") / "recipes" / f"{name}.toml"
        if not shipped.is_file():
            names = recipe_names()
            near = difflib.get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"there is no recipe {name!r}. Expected one of {', '.join(names)}, or a .toml file.{hint}"
            )
        text = shipped.read_text()
    else:
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigError(f"the recipe {name} cannot be read: {error.strerror}. Check the path.") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the recipe {name} is not TOML: {error}.") from None
    for override in overrides:
        _override(data, override)
    return parse_recipe(data, name)


def parse_recipe(data: dict[str, Any], name: str) -> Recipe:
    """Check a recipe's values. Errors: ``ConfigError``."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"the recipe {name} has a wrong value at {where}: {first['msg']}."
        if first["type"] == "extra_forbidden":
            known = _known_keys(first["loc"][:-1])
            near = difflib.get_close_matches(str(first["loc"][-1]), known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known keys: {', '.join(known)}."
            message = f"the recipe {name} has an unknown key {where}.{hint}"
        raise ConfigError(message) from None


def recipe_names() -> list[str]:
    """Recipes that ship with dlite."""
    return sorted(
        f.name.removesuffix(".toml") for f in (files("dlite") / "recipes").iterdir() if f.name.endswith(".toml")
    )


def _override(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError(f"the override {override!r} has no '='. Expected section.key=value, as in train.seed=1.")
    try:
        parsed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *path, last = key.split(".")
    place: Any = data
    try:
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        place[last] = parsed
    except (TypeError, ValueError, AttributeError, IndexError):
        raise ConfigError(
            f"the override {override!r} leads nowhere. Expected section.key=value, or stages.0.key=value with the number "
            "of a stage."
        ) from None


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    model: Any = Recipe
    sections = {
        "drafter": DrafterRecipe,
        "features": FeatureRecipe,
        "train": TrainRecipe,
        "stages": StageRecipe,
        "losses": Losses,
    }
    for part in path:
        model = sections.get(str(part), model)
    return list(model.model_fields)
