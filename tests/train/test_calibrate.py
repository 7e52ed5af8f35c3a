"""A confidence head added to a finished drafter: nothing else moves, it learns, and it is calibrated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dlite.checkpoint import CONFIG, load_drafter, save_drafter
from dlite.checkpoint.calibration import CALIBRATION
from dlite.config import load_recipe
from dlite.drafters.dlite import DLite
from dlite.errors import CheckpointError
from dlite.nn.losses import acceptance
from dlite.train.run import with_confidence
from dlite.train.stages import block_input
from dlite.types import View
from tests.drafters.test_dlite import Greedy
from tests.features.support import TOY
from tests.train.support import equal, losses, recipe, run, source, weights

PARTS = ["layers", "norm", "layer_depth_embedding", "context_norm", "sequential_head", "placeholder"]
TRAIN = {"name": "train", "steps": 20, "losses": {"ce": 0.1, "l1": 1.0}, "lr": 1e-2}
HEAD = {"name": "confidence", "steps": 50, "losses": {"confidence": 1.0}, "freeze": PARTS, "lr": 1e-1}
WITH = {"options": {"confidence": True}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a drafter, the same with a confidence head)."""
    folder = tmp_path_factory.mktemp("run")
    first = run(recipe([TRAIN]), folder / "first", store=folder / "store")
    start, _ = load_drafter(first, TOY.info)
    return first, run(
        recipe([HEAD], drafter=WITH, gamma=50.0), folder / "head", store=folder / "store", init=with_confidence(start)
    )


def test_only_the_head_moves_and_it_learns(finished: tuple[Path, Path]) -> None:
    first, second = finished
    before, after = weights(first), weights(second)
    head = {name for name in after if name.startswith("confidence_head.")}
    assert head == {"confidence_head.proj.weight", "confidence_head.proj.bias"}
    assert equal(before, {name: t for name, t in after.items() if name not in head})
    rows = losses(second.parent)
    assert sum(r["loss"] for r in rows[-10:]) < 0.99 * sum(r["loss"] for r in rows[:10])
    drafter, _ = load_drafter(second, TOY.info)
    blocks = source(recipe([HEAD], drafter=WITH)).batch(0, 0, 1, 0)
    with torch.no_grad():
        output = drafter.attach(TOY)(block_input(blocks, 3, 0))
    real = torch.arange(3) < blocks.counted[:, None]
    accepted = acceptance(output.logits, TOY.last_tap_logits(blocks.last[blocks.rows]))[real]
    stated = output.confidence.sigmoid()[real]
    assert float(stated.mean()) == pytest.approx(float(accepted.mean()), abs=0.08)
    assert torch.corrcoef(torch.stack([stated, accepted]))[0, 1] > 0.3


def test_without_a_head_the_folder_is_as_it_was(finished: tuple[Path, Path]) -> None:
    plain, headed = (json.loads((folder / CONFIG).read_text())["dlite_config"] for folder in finished)
    assert "confidence" not in plain
    assert headed == plain | {"confidence": True}
    assert not (finished[0] / CALIBRATION).exists()


def test_the_temperatures_are_read_with_the_drafter(finished: tuple[Path, Path], tmp_path: Path) -> None:
    record = json.loads((finished[1] / CALIBRATION).read_text())
    assert len(record["temperatures"]) == len(record["error_before"]) == len(record["error_after"]) == 3
    drafter, _ = load_drafter(finished[1], TOY.info)
    assert drafter.temperatures == tuple(record["temperatures"])
    drafter.attach(TOY)
    seen = View(torch.tensor([3]), torch.tensor([1]), torch.randn(1, 3, 16), [[1, 3]])
    drafter.temperatures = None
    raw = drafter.propose(seen, [3], Greedy()).confidence
    drafter.temperatures = (2.0, 1.0, 0.5)
    torch.testing.assert_close(
        drafter.propose(seen, [3], Greedy()).confidence, (raw.logit() / torch.tensor([2.0, 1.0, 0.5])).sigmoid()
    )
    save_drafter(drafter, tmp_path, TOY.info)
    for text in ("{}", '{"temperatures": [1, 2]}', '{"temperatures": [1, 0, 1]}', "nothing"):
        (tmp_path / CALIBRATION).write_text(text)
        with pytest.raises(CheckpointError, match=r"Expected 3 positive temperatures. Delete it"):
            load_drafter(tmp_path, TOY.info)


def test_confidence_is_the_same_in_training_and_in_decoding(finished: tuple[Path, Path]) -> None:
    """And what the head says of a draft does not depend on that draft."""
    drafter, _ = load_drafter(finished[1], TOY.info)
    drafter.attach(TOY).temperatures = None
    blocks = source(recipe([HEAD], drafter=WITH)).batch(0, 0, 1, 0)
    block = block_input(blocks, 3, 0)
    view = View(block.anchor, block.before, block.taps, [])
    proposal = drafter.propose(view, [3] * len(block.anchor), Greedy())
    previous = torch.cat([block.anchor[:, None], proposal.tokens[:, :-1]], 1)
    with torch.no_grad():
        output = drafter(replace(block, previous=previous))
    torch.testing.assert_close(proposal.confidence, output.confidence.sigmoid())


def test_a_head_that_is_there_stays(finished: tuple[Path, Path]) -> None:
    headed, _ = load_drafter(finished[1], TOY.info)
    assert with_confidence(headed) is headed


def test_the_published_layout_has_no_place_for_it(finished: tuple[Path, Path], tmp_path: Path) -> None:
    headed, _ = load_drafter(finished[1], TOY.info)
    with pytest.raises(CheckpointError, match="no confidence head"):
        save_drafter(headed, tmp_path, TOY.info, published=True)


def test_the_recipe_differs_from_the_shipped_drafters_in_the_head_alone() -> None:
    head, base = load_recipe("dlite-confidence"), load_recipe("smollm2-135m")
    assert head.drafter.model_copy(update={"options": {}}) == base.drafter
    assert head.drafter.options == {"confidence": True}
    small = head.drafter.model_copy(update={"num_taps": 3})
    with torch.device("meta"):
        network = DLite(DLite.configure(small, TOY.info, None))
    names = {name.split(".")[0] for name, _ in network.named_parameters()}
    assert names - set(head.stages[0].freeze) == {"confidence_head"}
