from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlite.audit import arms as module
from dlite.audit.arms import default_drafters, make_arms, serving_flags
from dlite.bench.run import PLAIN, Arm
from dlite.errors import ConfigError, DliteError

from .support import Guesser


@pytest.fixture(autouse=True)
def guessers(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.load_drafter
    monkeypatch.setattr(
        module,
        "load_drafter",
        lambda name, target: Guesser(target, K=4) if "run" in name or name == "shipped" else real(name, target),
    )


def test_plain_is_always_first_and_each_k_has_a_drafter_of_its_own(target: Any) -> None:
    arms, given = make_arms(target, ["shipped", "none", "runs/first/drafter", "shipped"], [2, 4])
    assert [arm.name for arm in arms] == [PLAIN, "DLite K=2", "DLite K=4", "first K=2", "first K=4"]
    assert len({id(arm.drafter) for arm in arms}) == 5
    assert given["first K=4"] == "runs/first/drafter"
    assert [arm.name for arm in make_arms(target, ["none"], [])[0]] == [PLAIN]


def test_two_drafters_of_one_name_are_told_apart(target: Any) -> None:
    arms, _ = make_arms(target, ["a/run/drafter", "b/run/drafter"], [])
    assert [arm.name for arm in arms] == [PLAIN, "run", "run (b/run/drafter)"]
    arms, _ = make_arms(target, ["hybrid:runs/first/drafter", "hybrid:shipped/run"], [])
    assert [arm.name for arm in arms] == [PLAIN, "hybrid first", "hybrid run"]


@pytest.mark.parametrize(
    ("drafters", "Ks", "words"),
    [
        (["none"], [3], "K is 3, but no drafter is given"),
        (["shipped"], [5], "K is 5. The drafter 'shipped' proposes 1 to 4"),
        (["shipped"], [0], "K is 0"),
    ],
)
def test_a_k_that_cannot_be(target: Any, drafters: list[str], Ks: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_arms(target, drafters, Ks)
    with pytest.raises(DliteError, match="there is no drafter 'nowhere'"):
        make_arms(target, ["nowhere"], [])


def test_flags_to_serve_an_arm(target: Any) -> None:
    arm = Arm("x", Guesser(target), 3)
    name = target.info.name
    dlite, other = serving_flags(target, arm, "runs/mine")
    assert dlite == ("dlite", f"dlite generate --target {name} --drafter runs/mine -K 3")
    assert "num_speculative_tokens = 3" in other[1]
    words = serving_flags(target, Arm("x", Guesser(target)), "ngram")[1][1]
    assert json.loads(words.split("'")[1]) == {"method": "ngram", "prompt_lookup_max": 3, "num_speculative_tokens": 4}


def test_a_dlite_folder_is_served_by_vllms_own_option(target: Any) -> None:
    arm = Arm("x", Guesser(target, name="dlite"), 3)
    (_, words) = serving_flags(target, arm, "runs/mine/drafter")[1]
    settings = json.loads(words.split("'")[1])
    assert settings == {
        "method": "dflash",
        "model": str(Path("runs/mine/drafter").resolve()),
        "num_speculative_tokens": 3,
    }
    smollm = replace(target.info, name="smollm2-135m")
    shipped = serving_flags(SimpleNamespace(info=smollm), arm, "shipped")[1][1]
    assert (Path(json.loads(shipped.split("'")[1])["model"]) / "config.json").is_file()


def test_without_a_drafter_there_are_copies(target: Any) -> None:
    assert default_drafters(target) == ["ngram", "suffix"]
    assert default_drafters(SimpleNamespace(info=SimpleNamespace(name="smollm2-135m"))) == ["shipped"]


def test_adaptive_arms_have_a_control_of_their_own(target: Any) -> None:
    arms, given = make_arms(target, ["shipped+adaptive", "shipped"], [4])
    assert [arm.name for arm in arms] == [PLAIN, "DLite adaptive K=4", "DLite K=4"]
    assert [arm.control is not None for arm in arms] == [False, True, False]
    words = serving_flags(target, arms[1], given["DLite adaptive K=4"])[0][1]
    assert words == f"dlite generate --target {target.info.name} --drafter shipped -K 4 --adaptive"
    with pytest.raises(ConfigError, match="K is 0. The drafter 'none' proposes 1 to 0"):
        make_arms(target, ["none+adaptive"], [])
