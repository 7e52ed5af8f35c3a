"""Drafts at held-out anchors: the batched pass counts what drafting itself would have accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dlite.checkpoint import save_drafter
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.features.capture import Capturer, CaptureSettings
from dlite.features.store import write_store
from dlite.study.anchors import figures, held_drafts, matches
from dlite.target.toy import ToyTarget
from tests.drafters.support import tiny
from tests.features.support import several

TOY = ToyTarget(stop=False)
K = 4


def test_drafts_hold_up_to_the_first_that_differs() -> None:
    drafts = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3], [1, 2, 3]])
    labels = torch.tensor([[1, 2, 3]] * 4)
    assert held_drafts(drafts, labels, torch.tensor([3, 3, 3, 2])).tolist() == [3, 1, 0, 2]


def test_figures_are_paired() -> None:
    first, second = [(1, 2), (3,)], [(2, 2), (3,)]
    row = figures(second, first, 3, seed=0)
    assert row["tau"]["value"] == pytest.approx(1 + 7 / 3)
    assert row["longer"]["value"] == pytest.approx(1 / 3)
    assert row["acceptance_by_position"] == [1.0, 1.0, pytest.approx(1 / 3, abs=1e-3)]
    assert (row["anchors"], row["conversations"]) == (3, 2)


@pytest.mark.parametrize("kind", ["dlite", "dflash", "dflash2", "dspark", "eagle3", "medusa"])
def test_matches_are_what_the_first_round_of_decoding_accepts(kind: str, tmp_path: Path) -> None:
    drafter = tiny(kind, TOY, K=K, draft_vocab=kind == "dspark", taps=(0, 2, 4))
    save_drafter(drafter, tmp_path / "drafter", TOY.info, dtype=torch.float32)
    conversations = several(5, (14,))
    settings = CaptureSettings(taps=tuple(range(TOY.info.num_layers)), K=K, history=64)
    write_store(tmp_path / "store", Capturer(TOY, settings), conversations, dtype="float32")
    found = matches(tmp_path / "drafter", TOY, tmp_path / "store", batch=7)
    drafter.freeze()
    expected = []
    for one in conversations:
        anchors = Capturer(TOY, settings).anchors(one)
        engine = Engine(TOY, drafter)
        numbers = [engine.submit(Request(one.ids[:anchor], K + 2)) for anchor in anchors]
        engine.run()
        expected.append(tuple(engine.result(number).rounds[0].accepted for number in numbers))
    assert found == expected
    assert sum(map(sum, found)) > 0
