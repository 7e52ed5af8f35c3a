"""A whole run learns; accumulation, sources, starts and settings do what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from dlite.checkpoint import load_drafter
from dlite.drafters.dlite import DLite
from dlite.errors import ConfigError, DliteError
from dlite.train import record
from dlite.train.held_out import held_out_tau
from dlite.train.schedule import block_length, lr_factor, stage_ends
from dlite.train.stages import stage_network
from tests.features.support import TOY
from tests.train.support import STABLE, STAGES, TEACHER, WARM_UP, equal, losses, recipe, run, talks, taus, weights

PROMPTS = [c.ids[:5] for c in talks()]


def test_teacher_warm_up_and_stable_learn(tmp_path: Path) -> None:
    stages = [{**TEACHER, "steps": 30}, {**WARM_UP, "steps": 30}, {**STABLE, "steps": 60}]
    plan = recipe(stages, batch_sequences=4, eval_every=40)
    folder = run(plan, tmp_path)
    for name in ("teacher", "warm-up", "stable"):
        values = [row["loss"] for row in losses(tmp_path) if row["stage"] == name]
        assert sum(values[-5:]) < 0.8 * sum(values[:5]), name
    assert {"ce", "l1"} <= losses(tmp_path)[-1].keys()
    drafter, _ = load_drafter(folder, TOY.info)
    fresh = stage_network(DLite, drafter.config, plan.stages[2], TOY, None, None, 0)
    untrained = held_out_tau(TOY, fresh.freeze(), PROMPTS, 12)["tau"]
    trained = held_out_tau(TOY, drafter.attach(TOY).freeze(), PROMPTS, 12)["tau"]
    assert trained > untrained + 0.5
    assert [row["step"] for row in taus(tmp_path)] == [40, 80, 120]
    assert taus(tmp_path)[-1]["blocks"] == sum(row["blocks"] for row in losses(tmp_path))
    assert json.loads((tmp_path / "recipe.json").read_text()) == plan.model_dump(mode="json")


def test_the_teachers_head_is_copied_and_stays_frozen_in_warm_up(tmp_path: Path) -> None:
    run(recipe([TEACHER, WARM_UP]), tmp_path)
    state = torch.load(tmp_path / "state.pt")
    teacher, student = state["teacher"], state["network"]
    fresh = stage_network(
        DLite, DLite.configure(recipe().drafter, TOY.info, None), recipe().stages[2], TOY, None, None, 0
    )
    for name, start in fresh.state_dict().items():
        if name.startswith("sequential_head."):
            assert torch.equal(student[name], teacher[name])
            assert not torch.equal(teacher[name], start)  # the teacher's own training moved it
        elif name.startswith("layers.") and name.endswith("proj.weight"):
            assert not torch.equal(student[name], start)


def test_stable_trains_everything(tmp_path: Path) -> None:
    warm = weights(run(recipe([TEACHER, WARM_UP]), tmp_path / "warm"))
    stable = weights(run(recipe(), tmp_path / "stable"))
    assert [name for name in warm if torch.equal(warm[name], stable[name])] == []


def test_four_sequences_at_once_or_one_by_one_give_the_same_gradient(tmp_path: Path) -> None:
    """Sequences hold different numbers of blocks, so a mean of means would differ."""
    stage = [{**STABLE, "steps": 3}]
    plans = [recipe(stage, batch_sequences=4), recipe(stage, batch_sequences=1, accumulate=4)]
    folders = [run(plan, tmp_path / str(i)) for i, plan in enumerate(plans)]
    one, four = losses(tmp_path / "0"), losses(tmp_path / "1")
    assert [row["blocks"] for row in one] == [row["blocks"] for row in four]
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in four], rel=1e-5)
    assert [row["l1"] for row in one] == pytest.approx([row["l1"] for row in four], rel=1e-5)
    ours, theirs = weights(folders[0]), weights(folders[1])
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


def test_a_store_trains_as_well_as_capturing_meanwhile(tmp_path: Path) -> None:
    """With every anchor of every conversation in one batch, both see the same blocks, in another order."""
    plan = recipe([{**TEACHER, "steps": 3}, {**STABLE, "steps": 3}], batch_sequences=8, batch_blocks=128)
    run(plan, tmp_path / "online")
    run(plan, tmp_path / "stored", store=tmp_path / "store")
    rows = zip(losses(tmp_path / "online"), losses(tmp_path / "stored"), strict=True)
    for one, other in rows:
        assert one["blocks"] == other["blocks"] == 128
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_a_trained_drafter_can_be_the_start(tmp_path: Path) -> None:
    first = run(recipe([{**STABLE, "steps": 30}]), tmp_path / "first")
    start, _ = load_drafter(first, TOY.info)
    again = recipe([{**STABLE, "steps": 4, "lr": 1e-3}])
    run(again, tmp_path / "second", init=start)
    run(again, tmp_path / "fresh")
    assert losses(tmp_path / "second")[0]["loss"] < 0.8 * losses(tmp_path / "fresh")[0]["loss"]
    assert losses(tmp_path / "second")[0]["loss"] == pytest.approx(losses(tmp_path / "first")[-1]["loss"], rel=0.5)
    with pytest.raises(ConfigError, match="cannot begin with a teacher stage"):
        run(recipe(), tmp_path / "third", init=start)


def test_two_runs_are_the_same_and_another_seed_is_not(tmp_path: Path) -> None:
    folders = [run(recipe([STABLE], seed=seed), tmp_path / str(i)) for i, seed in enumerate((1, 1, 2))]
    assert equal(weights(folders[0]), weights(folders[1]))
    assert not equal(weights(folders[0]), weights(folders[2]))


def test_short_blocks_are_mixed_in_the_same_way_each_time(tmp_path: Path) -> None:
    plan = recipe([{**STABLE, "steps": 8}], drafter={"K": 6}, short_blocks=0.5)
    lengths = [block_length(plan, i) for i in range(200)]
    assert set(lengths) == {2, 3, 6}
    assert 60 < lengths.count(6) < 140
    run(plan, tmp_path)
    assert all(math.isfinite(row["loss"]) for row in losses(tmp_path))


def test_a_draft_vocabulary_trains(tmp_path: Path) -> None:
    folder = run(recipe([{**STABLE, "steps": 20}]), tmp_path, vocab=(0, 1, 2, 5, 9))
    assert weights(folder)["sequential_head.output_proj.weight"].shape == (5, 8)
    values = [row["loss"] for row in losses(tmp_path)]
    assert sum(values[-3:]) < sum(values[:3])


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        DliteError, match=r"step \d has loss (nan|inf) and gradient norm .* Expected finite numbers. Lower lr"
    ):
        run(recipe([{**STABLE, "lr": 1e30, "losses": {"ce": 1.0}}]), tmp_path)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([TEACHER], "the last stage trains a teacher, which cannot be served"),
        ([WARM_UP], "stage 'warm-up' copies 'sequential_head' from a teacher, but no stage before it has a window"),
        ([{**STABLE, "losses": {"kl_teacher": 1.0}}], "kl_teacher has a weight, but no teacher was trained"),
        ([{**STABLE, "freeze": ["head"]}], "the drafter has no part 'head'. Expected one of .*sequential_head"),
        ([{**STABLE, "epochs": 1}], "stage 'stable' needs exactly one of 'steps' and 'epochs'"),
        ([{k: v for k, v in STABLE.items() if k != "steps"}], "needs exactly one of 'steps' and 'epochs'"),
    ],
)
def test_stages_that_cannot_be(tmp_path: Path, stages: list[dict[str, object]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(recipe(stages), tmp_path)


def test_epochs_count_optimizer_steps() -> None:
    plan = recipe(
        [{**STAGES[2], "steps": None, "epochs": 3}, {**STAGES[2], "steps": None, "epochs": 0.5}], accumulate=2
    )
    assert stage_ends(plan, steps_per_epoch=8) == [12, 14]


def test_the_learning_rate_rises_and_falls() -> None:
    factors = [lr_factor(step, 100, 0.04, 0.1) for step in range(100)]
    assert factors[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[52] == pytest.approx(0.55)  # halfway down the cosine
    assert lr_factor(100, 100, 0.04, 0.1) == pytest.approx(0.1)
    assert lr_factor(0, 1, 0.0, 0.0) == 1


def test_the_logged_rate_is_the_stages_own(tmp_path: Path) -> None:
    plan = recipe([{**STABLE, "steps": 3, "lr": 0.5e-3, "warmup": 0.0}, {**STABLE, "steps": 3, "lr": 1e-3}])
    run(plan, tmp_path)
    rates = [row["lr"] for row in losses(tmp_path)]
    assert [rates[0], rates[3]] == pytest.approx([0.5e-3, 1e-3])


def test_tau_is_the_engines(tmp_path: Path) -> None:
    folder = run(recipe([STABLE]), tmp_path)
    drafter = load_drafter(folder, TOY.info)[0].attach(TOY).freeze()
    wanted = held_out_tau(TOY, drafter, [(3, 1, 4), (2, 7, 1, 8)], 12)
    assert taus(tmp_path)[-1].items() >= wanted.items()
    assert 1 <= wanted["tau"] <= 4


def test_losses_go_to_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Board:
        def __init__(self) -> None:
            self.seen: dict[str, list[int]] = {}

        def add_scalar(self, name: str, value: float, step: int) -> None:
            assert math.isfinite(value)
            self.seen.setdefault(name, []).append(step)

    board = Board()
    monkeypatch.setattr(record, "tensorboard", lambda folder: board)
    run(recipe([{**STABLE, "steps": 2}]), tmp_path)
    assert board.seen.keys() == {"stable/loss", "stable/ce", "stable/l1", "stable/lr", "held-out/tau"}
    assert board.seen["stable/loss"] == [1, 2]
