"""A whole small study on the toy target: trained once, resumed for nothing, told as a page made from its JSON alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlite.config import parse_recipe
from dlite.data.conversations import is_held_out, to_record
from dlite.errors import ConfigError, DataError
from dlite.study.plan import StudyPlan, load_plan, scaled
from dlite.study.run import study
from dlite.study.tables import markdown, read_study
from dlite.target.toy import ToyTarget
from tests.features.support import conversation, several

TOY = ToyTarget(stop=False)

RECIPE = """
target = "toy"
[drafter]
kind = "{kind}"
K = 3
num_layers = 1
num_taps = 3
rank = 8
[[stages]]
name = "first"
steps = 6
losses = {{ ce = 1.0 }}
[[stages]]
name = "second"
steps = 2
losses = {{ l1 = 1.0 }}
"""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recipes, answers and a workload."""
    folder = tmp_path_factory.mktemp("study")
    for kind in ("dlite", "dflash"):
        (folder / f"{kind}.toml").write_text(RECIPE.format(kind=kind))
    held = next(name for name in map(str, range(1000)) if is_held_out(name))
    answers = [*several(8), conversation(TOY, held)]
    (folder / "answers.jsonl").write_text("".join(json.dumps(to_record(c)) + "\n" for c in answers))
    prompts = [[1, 2, 3], [4, 5, 6, 7], [8, 9, 1, 2, 3]]
    (folder / "work.jsonl").write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in prompts))
    return folder


def plan(folder: Path, **changes: Any) -> StudyPlan:
    values = {
        "target": "toy", "steps": 12, "batch_blocks": 8, "conversations": 6, "history": 8, "calls": 2,
        "max_new_tokens": 12, "max_context": 100,
        "arms": [
            {"name": "dlite", "recipe": str(folder / "dlite.toml")},
            {"name": "dflash", "recipe": str(folder / "dflash.toml")},
            {"name": "dflash-cut", "weights": "dflash", "changed": {"window": 4}},
        ],
        "tables": [
            {"title": "All", "question": "Who?", "arms": ["dlite", "dflash", "dflash-cut"], "by_context": True, "published": "general"}
        ],
    }  # fmt: skip
    return StudyPlan.model_validate(values | changes)


def test_a_study_trains_measures_and_tells(material: Path, tmp_path: Path) -> None:
    steps: list[int] = []

    def go() -> dict[str, Any]:
        return study(
            plan(material), TOY, [material / "answers.jsonl"], {"toys": material / "work.jsonl"}, tmp_path,
            argv=["dlite", "study"], captured=steps.append,
        )  # fmt: skip

    record = go()
    assert record["lossless"] == {"plain": True, "dlite": True, "dflash": True, "dflash-cut": True}
    facts = {arm["name"]: arm for arm in record["arms"]}
    assert facts["dlite"]["anchor_views"] == facts["dflash"]["anchor_views"] == 12 * 8
    assert facts["dlite"]["stages"] == [["first", 9], ["second", 3]]
    assert facts["dflash-cut"]["state_bytes"]["8192"] < facts["dflash"]["state_bytes"]["8192"]
    assert facts["dlite"]["fixed"]["longer"]["value"] == 0
    assert facts["dflash"]["fixed"]["anchors"] == facts["dlite"]["fixed"]["anchors"] > 0
    assert {row["arm"] for row in record["figures"]} == {"plain", "dlite", "dflash", "dflash-cut"}
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors") if "cut" not in str(p)}
    assert go()["figures"] == record["figures"]
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors") if "cut" not in str(p)}
    page = markdown(read_study(tmp_path / "study.json"))
    assert page == markdown(record)
    assert "| dflash-cut |" in page
    assert "held-out anchors of 1 conversations" in page
    assert "Published, not ours" in page
    tau = next(r for r in record["figures"] if r["arm"] == "dlite" and r["context"] == "all")["tau"]["value"]
    assert f"{tau:.2f}" in page


def test_a_failed_check_hides_the_speed_up(material: Path, tmp_path: Path) -> None:
    record = study(
        plan(material), TOY, [material / "answers.jsonl"], {"toys": material / "work.jsonl"}, tmp_path, argv=[]
    )
    record["lossless"]["dlite"] = False
    assert "**Not lossless: dlite.**" in markdown(record)


def test_stages_share_the_budget_in_proportion() -> None:
    recipe = parse_recipe(
        {
            "target": "t",
            "drafter": {},
            "stages": [{"name": n, "epochs": e, "losses": {"ce": 1}} for n, e in (("a", 8), ("b", 2), ("c", 6))],
        },
        "r",
    )
    assert [s.steps for s in scaled(recipe.stages, 160)] == [80, 20, 60]
    assert sum(s.steps or 0 for s in scaled(recipe.stages, 33)) == 33


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": [{"name": "a"}]}, "exactly one of recipe, drafter and weights"),
        ({"arms": [{"name": "a", "drafter": "none"}] * 2}, "two arms have one name"),
        ({"arms": [{"name": "a", "weights": "b"}]}, "not an arm before it"),
        ({"tables": [{"title": "T", "question": "", "arms": ["nobody"]}]}, "no arms"),
        ({"speed": 3}, "Extra inputs"),
    ],
)
def test_a_wrong_plan_is_explained(material: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(material, **changes)


def test_the_shipped_plan_is_sound_and_names_recipes_that_exist() -> None:
    small = load_plan("small")
    assert [plan.recipe(arm).target for plan in (small, load_plan("choices")) for arm in plan.arms if arm.recipe]
    with pytest.raises(ConfigError, match="there is no study"):
        load_plan("large")
    with pytest.raises(DataError, match="is not a study"):
        read_study(Path(__file__))
