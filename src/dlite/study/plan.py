"""Study plans: TOML files that say which drafters are trained, on what budget, and which tables they fill."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dlite.config import Recipe, StageRecipe, load_recipe
from dlite.errors import ConfigError


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArmPlan(_Strict):
    """One way of drafting. Exactly one of:

    ``recipe`` trains it, with the overrides ``set``; ``drafter`` is ready by name, where ``{arm}`` stands for the folder of
    another arm; ``weights`` takes another arm's weights, with config values ``changed`` (for instance a window that
    was not there in training).
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    recipe: str | None = None
    set: tuple[str, ...] = ()
    drafter: str | None = None
    weights: str | None = None
    changed: dict[str, int | str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_source(self) -> ArmPlan:
        if sum(x is not None for x in (self.recipe, self.drafter, self.weights)) != 1:
            raise ValueError(f"arm {self.name} needs exactly one of recipe, drafter and weights")
        return self


class TablePlan(_Strict):
    """A table of the report: some arms side by side, and the published figures that belong beside them."""

    title: str
    question: str
    arms: tuple[str, ...] = Field(min_length=1)
    by_context: bool = False
    published: str | None = None


class StudyPlan(_Strict):
    """A whole study.

    Every trained arm gets ``steps`` optimizer steps of ``batch_blocks`` anchors, its recipe's stages scaled to that sum,
    and the overrides ``common``. ``conversations`` are captured once, with every layer and ``history`` positions.
    Trained arms are compared at up to ``anchors_per_answer`` anchors of each of ``held_out`` conversations. ``calls`` of
    each workload are decoded, ``max_new_tokens`` each, with prompts of at most ``max_context`` tokens.
    """

    target: str
    steps: int = Field(ge=2)
    batch_blocks: int = Field(ge=1)
    conversations: int = Field(ge=1)
    history: int = Field(ge=1)
    held_out: int = Field(64, ge=1)
    anchors_per_answer: int = Field(48, ge=1)
    calls: int = Field(ge=1)
    max_new_tokens: int = Field(ge=1)
    max_context: int = Field(ge=16)
    seed: int = 0
    common: tuple[str, ...] = ()
    arms: tuple[ArmPlan, ...] = Field(min_length=1)
    tables: tuple[TablePlan, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names(self) -> StudyPlan:
        names = [arm.name for arm in self.arms]
        if len(set(names)) < len(names):
            raise ValueError("two arms have one name")
        for arm in self.arms:
            if arm.weights is not None and arm.weights not in names[: names.index(arm.name)]:
                raise ValueError(f"arm {arm.name} takes the weights of {arm.weights}, which is not an arm before it")
        for table in self.tables:
            if missing := set(table.arms) - set(names):
                raise ValueError(f"table {table.title!r} names {sorted(missing)}, which are no arms")
        return self

    def recipe(self, arm: ArmPlan) -> Recipe:
        """The recipe an arm is trained with, its stages scaled to the study's budget. Errors: ``ConfigError``."""
        budget = [
            f"train.batch_blocks={self.batch_blocks}", f"train.seed={self.seed}", f"drafter.history={self.history}",
            "features.whole_blocks=false", *self.common, *arm.set,
        ]  # fmt: skip
        recipe = load_recipe(arm.recipe or "", budget)
        if recipe.target != self.target:
            raise ConfigError(f"arm {arm.name} is for {recipe.target}, the study for {self.target}. Use one target.")
        return recipe.model_copy(update={"stages": scaled(recipe.stages, self.steps)})


def scaled(stages: tuple[StageRecipe, ...], steps: int) -> tuple[StageRecipe, ...]:
    """The stages with their lengths in proportion and ``steps`` steps in all: a teacher's are paid from the same sum."""
    lengths = [float(stage.steps or stage.epochs or 0) for stage in stages]
    ends = [round(steps * sum(lengths[: i + 1]) / sum(lengths)) for i in range(len(stages))]
    counts = [max(1, end - before) for before, end in zip([0, *ends], ends, strict=False)]
    return tuple(
        stage.model_copy(update={"steps": count, "epochs": None}) for stage, count in zip(stages, counts, strict=True)
    )


def load_plan(name: str) -> StudyPlan:
    """A plan by name (one that ships with dlite) or path. Errors: ``ConfigError`` naming the wrong value."""
    shipped = {
        f.name.removesuffix(".toml"): f for f in (files("dlite") / "studies").iterdir() if f.name[-5:] == ".toml"
    }
    try:
        text = shipped[name].read_text() if name in shipped else Path(name).read_text()
        return StudyPlan.model_validate(tomllib.loads(text))
    except OSError:
        raise ConfigError(
            f"there is no study {name!r}. Expected one of {', '.join(sorted(shipped))}, or a .toml file."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the study {name} is not TOML: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "its arms"
        raise ConfigError(f"the study {name} has a wrong value at {where}: {first['msg']}.") from None
