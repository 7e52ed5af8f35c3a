"""DFlash2: the candidates are all that can be drafted, its q is exact, where it starts, what it refuses, that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.checkpoint import load_drafter
from dlite.config import load_recipe
from dlite.drafters.dflash import DFlash
from dlite.drafters.dflash2 import DFlash2
from dlite.engine.choose import BatchChooser
from dlite.engine.request import Active, Request
from dlite.errors import ConfigError
from dlite.nn.backbone import BackboneConfig
from dlite.nn.layout import shallow_taps
from dlite.sampling import SamplingParams
from dlite.target.base import TargetInfo
from dlite.types import View
from tests.drafters.learning import learns
from tests.drafters.support import forced_round, tiny
from tests.features.support import TOY
from tests.train.support import recipe

IDS, DRAFTS = (3, 1, 4, 1, 5, 9, 2, 6), (6, 10, 8, 2)
VARIANTS: list[dict[str, Any]] = [
    {"options": {"candidates": 3}},
    {"options": {"candidates": 2, "slots": "anchor_predicts", "conv_group": 4}, "draft_vocab": True},
    {"options": {"candidates": 3, "conv_group": 8}, "window": 5, "draft_vocab": True},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_chooser_sees_the_scores_of_the_candidates_alone(variant: dict[str, Any], frozen: bool) -> None:
    network = tiny("dflash2", TOY, **variant)
    _, _, output = forced_round(network, TOY, IDS, DRAFTS)
    _, shown, _ = forced_round(network.freeze() if frozen else network, TOY, IDS, DRAFTS)
    assert output.candidates is not None
    rows, scores = output.candidates
    assert shown.isfinite().sum(1).tolist() == [variant["options"]["candidates"]] * 4
    torch.testing.assert_close(shown.gather(1, rows[0]), scores[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(rows, output.logits.topk(rows.shape[-1]).indices)


def test_a_slot_knows_the_token_before_it_and_no_earlier_one() -> None:
    network = tiny("dflash2", TOY, options={"candidates": 12})
    _, scores, _ = forced_round(network, TOY, IDS, DRAFTS)
    _, other, _ = forced_round(network, TOY, IDS, (DRAFTS[0], 1, *DRAFTS[2:]))
    assert (scores - other).abs().amax(-1).gt(1e-6).tolist() == [False, False, True, False]


def test_sampled_drafts_come_from_the_q_that_is_kept() -> None:
    network = tiny("dflash2", TOY, options={"candidates": 3}, draft_vocab=True).freeze()
    _, _, output = forced_round(network, TOY, IDS, DRAFTS)
    assert output.candidates is not None
    first = {2 * row for row in output.candidates[0][0, 0].tolist()}  # the draft vocabulary is every second token
    known = torch.tensor([IDS[:-1]])
    taps = TOY.forward(known, TOY.new_cache(1, len(IDS)), 0, network.taps, "taps").taps
    memory = network.new_memory(1)
    memory.observe(0, known, taps, [len(IDS) - 1])
    view = View(torch.tensor(IDS[-1:]), torch.tensor(IDS[-2:-1]), taps[:, -1], [IDS], memory, range(1))
    seen = set()
    for seed in range(40):
        sampling = SamplingParams(temperature=9.0, seed=seed)
        chooser = BatchChooser([Active(0, Request(IDS, sampling=sampling), list(IDS))], 12)
        drafts = network.propose(view, [4], chooser).tokens[0].tolist()
        for q, draft in zip(chooser.probs[0], drafts, strict=True):
            assert float(q.sum()) == pytest.approx(1)
            assert q[draft] > 0
            assert (q > 0).sum() <= 3
        assert set(chooser.probs[0][0].nonzero().flatten().tolist()) == first
        seen.add(drafts[0])
    assert seen == first


def test_untrained_it_drafts_as_dflash_does() -> None:
    plan = recipe(drafter={"kind": "dflash2", "options": {"candidates": 12}}).drafter
    dflash2 = DFlash2(DFlash2.configure(plan, TOY.info, None)).attach(TOY)
    dflash2.start(TOY, torch.Generator().manual_seed(0))
    plan = recipe(drafter={"kind": "dflash"}).drafter
    dflash = DFlash(DFlash.configure(plan, TOY.info, None)).attach(TOY)
    dflash.body.load_state_dict({k: v for k, v in dflash2.body.state_dict().items() if "conv" not in k})
    pair = [forced_round(network.eval(), TOY, IDS, DRAFTS[:3])[1] for network in (dflash2, dflash)]
    torch.testing.assert_close(*pair)


def test_the_recipe_is_the_published_one() -> None:
    plan = load_recipe("dflash2")
    layer = BackboneConfig(576, 30, 9, 3, 64, 1536, qk_norm=False)
    info = TargetInfo("smollm2-135m", 49152, 576, 30, 8192, frozenset({0}), "", layer)
    config = DFlash2.configure(plan.drafter, info, None)
    assert (config.candidates, config.conv_group, config.rank, config.slots) == (16, 16, 256, "placeholders")
    assert config.taps == shallow_taps(30, 5)
    weights = {name: value for name, value in plan.stages[-1].losses.model_dump().items() if value}
    assert weights == {"ce": 1.0, "candidates": 1.0}


def test_no_more_candidates_than_tokens() -> None:
    plan = recipe(drafter={"kind": "dflash2"}).drafter
    assert DFlash2.configure(plan, TOY.info, None).candidates == 12
    assert DFlash2.configure(plan, TOY.info, (1, 2, 5)).candidates == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conv_group": 5}, "conv_group is 5, which does not divide the hidden size 16. Expected a divisor of it"),
        ({"candidates": 0}, "drafter.options.candidates does not fit the drafter 'dflash2'"),
        ({"group": 8}, "drafter.options.group does not fit .* Known options: candidates, conv_group, slots"),
    ],
)
def test_what_it_does_not_know_is_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DFlash2.configure(recipe(drafter={"kind": "dflash2", "options": options}).drafter, TOY.info, None)


def test_it_learns(tmp_path: Path) -> None:
    drafter = {"kind": "dflash2", "options": {"candidates": 4}, "history": 8}
    learns(drafter, tmp_path, losses={"ce": 1.0, "candidates": 1.0}, steps=150)
    trained, _ = load_drafter(tmp_path / "drafter", TOY.info)
    assert trained.body.layers[0].mlp_conv.steer.weight.abs().max() > 1e-3
    assert trained.pairwise.next_token_embedding.weight.abs().max() > 1e-3
