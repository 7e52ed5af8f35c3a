"""Stopped at any moment and started again, a run logs the same losses, bit for bit, and ends in the same weights."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from dlite.errors import ConfigError, DataError
from dlite.train.loop import Progress
from tests.train.support import STAGES, equal, log_equal, losses, recipe, run, weights


class Stop(Exception):
    """Stands for a kill between two steps."""


def stopped_after(step: int, out: Path, **options: object) -> None:
    def report(now: Progress) -> None:
        if now.step == step:
            raise Stop

    with pytest.raises(Stop):
        run(recipe(**options), out, report=report)


@pytest.fixture(scope="module", params=["adamw", "muon"])
def optimizer(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, optimizer: str) -> Path:
    out = tmp_path_factory.mktemp("unbroken")
    run(recipe(optimizer=optimizer), out)
    assert [row["stage"] for row in losses(out)] == ["teacher"] * 4 + ["warm-up"] * 3 + ["stable"] * 5
    return out


def test_a_killed_process_goes_on_where_it_saved(tmp_path: Path, unbroken: Path, optimizer: str) -> None:
    moment = random.uniform(1, 11)
    log = tmp_path / "losses.jsonl"
    command = [sys.executable, "-m", "tests.train.child", str(tmp_path), optimizer]
    child = subprocess.Popen(command, cwd=Path(__file__).parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        while child.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < int(moment)):
            time.sleep(0.005)
        time.sleep(0.03 * (moment % 1))
    finally:
        child.kill()  # SIGKILL: nothing can be tidied up
    assert child.wait() == -9
    done = log.read_bytes().count(b"\n")
    assert 1 <= done < 12, f"killed at {moment}"
    run(recipe(optimizer=optimizer), tmp_path)
    assert log_equal(tmp_path, unbroken), f"killed at {moment}"
    assert equal(weights(tmp_path / "drafter"), weights(unbroken / "drafter"))


@pytest.mark.parametrize(
    ("step", "save_every"), [(1, 3), (3, 3), (4, 1), (5, 1), (6, 4), (7, 1), (8, 1), (9, 5), (12, 1)]
)
def test_every_stage_boundary_resumes(
    tmp_path: Path, unbroken: Path, optimizer: str, step: int, save_every: int
) -> None:
    """Stopped before, at and behind the ends of stages (after steps 4 and 7), on a save and between two."""
    stopped_after(step, tmp_path, optimizer=optimizer, save_every=save_every)
    run(recipe(optimizer=optimizer, save_every=save_every), tmp_path)
    assert log_equal(tmp_path, unbroken)
    assert equal(weights(tmp_path / "drafter"), weights(unbroken / "drafter"))


def test_a_finished_run_started_again_changes_nothing(tmp_path: Path) -> None:
    folder = run(recipe(), tmp_path)
    before, logs = weights(folder), [(tmp_path / f"{n}.jsonl").read_bytes() for n in ("losses", "tau")]
    assert equal(weights(run(recipe(), tmp_path)), before)
    assert [(tmp_path / f"{n}.jsonl").read_bytes() for n in ("losses", "tau")] == logs


def test_a_stored_run_resumes_too(tmp_path: Path) -> None:
    run(recipe(), tmp_path / "unbroken", store=tmp_path / "store")

    def report(now: Progress) -> None:
        if now.step == 6:
            raise Stop

    with pytest.raises(Stop):
        run(recipe(), tmp_path / "stopped", store=tmp_path / "store", report=report)
    run(recipe(), tmp_path / "stopped", store=tmp_path / "store")
    assert log_equal(tmp_path / "stopped", tmp_path / "unbroken")


def test_log_lines_behind_the_last_save_are_cut_torn_ones_too(tmp_path: Path, unbroken: Path, optimizer: str) -> None:
    stopped_after(6, tmp_path, optimizer=optimizer)
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    run(recipe(optimizer=optimizer), tmp_path)
    assert log_equal(tmp_path, unbroken)


def test_another_recipe_or_other_data_needs_another_folder(tmp_path: Path) -> None:
    stopped_after(5, tmp_path)
    changed = [recipe(seed=1), recipe([{**STAGES[0], "steps": 5}, *STAGES[1:]]), recipe(drafter={"rank": 4})]
    for plan in changed:
        with pytest.raises(ConfigError, match="was begun with another recipe or other data.* or another --out"):
            run(plan, tmp_path)
    epochs = [{"name": "stable", "epochs": 2, "losses": {"ce": 1.0}}]
    run(recipe(epochs), tmp_path / "epochs")
    with pytest.raises(ConfigError, match="begun with another recipe or other data"):
        run(recipe(epochs), tmp_path / "epochs", store=tmp_path / "store")


def test_a_damaged_state_says_what_to_do(tmp_path: Path) -> None:
    stopped_after(5, tmp_path)
    (tmp_path / "state.pt").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match=r"state\.pt cannot be read .* Delete it to train from the start"):
        run(recipe(), tmp_path)


def test_a_full_disk_keeps_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_after(5, tmp_path)
    before = (tmp_path / "state.pt").read_bytes()

    def full(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(DataError, match="No space left on device.* The one before is intact"):
            run(recipe(), tmp_path)
    assert (tmp_path / "state.pt").read_bytes() == before
    assert not (tmp_path / "state.pt.part").exists()
