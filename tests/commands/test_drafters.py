"""``dlite drafters``: every name, figures that are the drafters' own, and no crash for what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlite.config import DrafterRecipe
from dlite.drafters import TABLE, drafter_class
from dlite.drafters.base import About
from dlite.drafters.dflash import DFlash
from dlite.drafters.facts import facts
from dlite.drafters.suffix import Suffix
from dlite.target.hf import HFTarget
from dlite.target.load import load_info
from tests.drafters.support import tiny
from tests.support import Run, tiny_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config and nothing else."""
    folder = tmp_path_factory.mktemp("target")
    tiny_model("llama", context=300, num_hidden_layers=16).config.save_pretrained(folder)
    return folder


def test_every_name_has_a_line(dlite: Run, target: Path) -> None:
    status, out, err = dlite("drafters", "--target", target, "--context", 100)
    assert (status, err) == (0, "")
    header, *lines = out.splitlines()
    assert header.split() == ["name", "context", "state/token", "state/request", "trained", "head", "paper"]
    assert [line.split()[0] for line in lines] == list(TABLE)
    cells = {line.split()[0]: line.split() for line in lines}
    assert cells["none"][1:5] == ["none", "0", "0", "no"]
    assert cells["dlite"][1:5] == ["pivot", "0", f"{12 * 4 * 32:,}", "yes"]
    assert cells["suffix"][1:5] == ["text", "620", f"{Suffix().state_bytes(100):,}", "no"]
    assert "2411.04975" in cells["hybrid"]


def test_the_figures_are_the_drafters_own(target: Path) -> None:
    info = load_info(str(target))
    model = HFTarget(tiny_model("llama", context=300, num_hidden_layers=16), None, str(target))
    assert replace(model.info, stop_ids=frozenset()) == info
    found = {one.name: one for one in facts(info, 50)}
    drafter = tiny("dflash", model, num_taps=5, num_layers=2)
    assert found["dflash"].state == (drafter.state_bytes(50) - drafter.state_bytes(49), drafter.state_bytes(50))
    assert found["dflash"].about == About(context="all", head="the target's", paper="arXiv 2602.06036")


def test_one_that_does_not_say_or_does_not_fit_has_a_line_too(
    dlite: Run, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(DFlash, "about")
    _, out, _ = dlite("drafters", "--target", target)
    assert next(line for line in out.splitlines() if line.startswith("dflash ")).split()[1] == "-"
    small = target.parent / "small"
    tiny_model("llama", num_hidden_layers=4).config.save_pretrained(small)
    status, out, _ = dlite("drafters", "--target", small)
    assert status == 0
    assert "does not fit" in next(line for line in out.splitlines() if line.startswith("dlite "))


def test_every_drafter_with_facts_says_all_of_them() -> None:
    for name in TABLE:
        about = getattr(drafter_class(name), "about", None)
        assert about is None or all((about.context, about.head, about.paper))


def test_a_target_that_is_not_there_is_one_sentence(dlite: Run) -> None:
    status, out, err = dlite("drafters", "--target", "/none")
    assert (status, out) == (2, "")
    assert err.startswith("dlite: no usable target at '/none'")
    assert err.count("\n") == 1


def test_the_default_settings_serve_where_there_is_no_recipe(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    monkeypatch.setattr("dlite.drafters.facts.recipe_names", list)
    found = {one.name: one for one in facts(load_info(str(target)), 50)}
    layers = DrafterRecipe().num_layers
    assert found["dflash"].state is not None
    assert found["dflash"].state[0] == 2 * 4 * layers * 2 * 8
