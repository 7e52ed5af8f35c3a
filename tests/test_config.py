"""Recipes: what ships is valid, what is misspelt is named, what is overridden counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlite.config import Recipe, load_recipe, recipe_names
from dlite.errors import ConfigError

SMALL = 'target = "toy"\n[drafter]\nK = 3\n[[stages]]\nname = "stable"\nsteps = 4\nlosses = { ce = 1.0 }\n'


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_valid(name: str) -> None:
    plan = load_recipe(name)
    assert plan.stages[-1].window == 0  # what a run ends in can be served
    for stage in plan.stages:
        assert (stage.steps is None) != (stage.epochs is None)
        assert any(stage.losses.model_dump().values())


def test_the_published_settings() -> None:
    assert {"qwen3-4b", "qwen3-8b", "smollm2-135m", "tiny"} <= set(recipe_names())
    for name, taps, rank in (("qwen3-4b", 12, 320), ("qwen3-8b", 14, 512)):
        plan = load_recipe(name)
        assert (plan.drafter.K, plan.drafter.num_layers, plan.drafter.num_taps, plan.drafter.rank) == (7, 5, taps, rank)
        assert [(s.name, s.epochs, s.window) for s in plan.stages] == [
            ("teacher", 8, 512),
            ("warm-up", 2, 0),
            ("stable", 6, 0),
        ]
        assert {(s.lr, s.warmup) for s in plan.stages} == {(6e-4, 0.04)}
        assert {k: v for k, v in plan.stages[2].losses.model_dump().items() if v} == {"ce": 0.1, "l1": 1.0}
        assert (plan.train.gamma, plan.train.clip) == (4.0, 1.0)
        assert (plan.features.anchors_per_sequence, plan.features.max_length) == (512, 4096)


def test_overrides_are_read_as_toml_or_as_words(small: str) -> None:
    changes = [
        "train.seed=7", "drafter.rank=16", "features.truncated=keep", "drafter.taps=[0, 2, 5]", "stages.0.lr=1e-3",
        "stages.0.losses.l1=1", "features.whole_blocks=false", "target=other/model",
    ]  # fmt: skip
    plan = load_recipe(small, changes)
    assert (plan.train.seed, plan.drafter.rank, plan.features.truncated) == (7, 16, "keep")
    assert (plan.drafter.taps, plan.stages[0].lr, plan.stages[0].losses.l1) == ((0, 2, 5), 1e-3, 1)
    assert (plan.features.whole_blocks, plan.target) == (False, "other/model")
    assert load_recipe(small).train.seed == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("drafter.rnak=3", "unknown key drafter.rnak. Did you mean 'rank'?"),
        ("train.save_evry=3", "unknown key train.save_evry. Did you mean 'save_every'?"),
        ("stages.0.lrr=3", "unknown key stages.0.lrr. Did you mean 'lr'?"),
        ("stages.0.losses.kl_techer=1", "unknown key stages.0.losses.kl_techer. Did you mean 'kl_teacher'?"),
        ("trian.seed=3", "unknown key trian. Did you mean 'train'?"),
        ("train.zzz=3", "unknown key train.zzz. Known keys: batch_blocks, "),
        ("drafter.K=0", "wrong value at drafter.K: "),
        ("drafter.K=many", "wrong value at drafter.K: "),
        ("train.optimizer=sgd", "wrong value at train.optimizer: "),
        ("stages.0.lr=-1", "wrong value at stages.0.lr: "),
        ("stages=[]", "wrong value at stages: "),
        ("train.seed", "the override 'train.seed' has no '='"),
        ("stages.3.lr=1", "the override 'stages.3.lr=1' leads nowhere"),
        ("stages.teacher.lr=1", "the override 'stages.teacher.lr=1' leads nowhere"),
        ("target.name=1", "the override 'target.name=1' leads nowhere"),
    ],
)
def test_what_does_not_fit_is_named(small: str, change: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_recipe(small, [change])
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target = ", "is not TOML: "),
        ("", "wrong value at target: Field required"),
        ('target = "a"', "wrong value at drafter"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_recipe(str(path))


def test_names_that_are_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="there is no recipe 'qwen3-4'. Expected one of .*, or a .toml file. Did you mean 'qwen3-4b'?"
    ):
        load_recipe("qwen3-4")
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load_recipe(str(tmp_path / "missing.toml"))


def test_a_recipe_survives_its_own_record(small: str) -> None:
    plan = load_recipe(small, ["drafter.taps=[0, 2, 5]"])
    assert Recipe.model_validate(plan.model_dump(mode="json")) == plan
