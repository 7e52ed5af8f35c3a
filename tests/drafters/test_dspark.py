"""DSpark: its confidence in training and decoding, where it starts, what it refuses, and that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.checkpoint import load_drafter
from dlite.config import load_recipe
from dlite.drafters.dflash import DFlash
from dlite.drafters.dspark import DSpark
from dlite.errors import ConfigError
from dlite.features.blocks import merge
from dlite.features.capture import Capturer, CaptureSettings
from dlite.nn.backbone import BackboneConfig
from dlite.nn.layout import shallow_taps
from dlite.nn.losses import acceptance
from dlite.target.base import TargetInfo
from dlite.train.stages import block_input
from tests.drafters.learning import learns
from tests.drafters.support import forced_round, tiny
from tests.features.support import TOY
from tests.train.support import recipe, talks

IDS, DRAFTS = (3, 1, 4, 1, 5, 9, 2, 6), (6, 10, 8, 2)
VARIANTS: list[dict[str, Any]] = [
    {"options": {"head": "vanilla"}},
    {"options": {"head": "gated", "slots": "placeholders"}, "draft_vocab": True},
    {"options": {"head": "rnn"}, "window": 5, "draft_vocab": True},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("frozen", [False, True])
def test_confidence_is_the_same_in_training_and_decoding(variant: dict[str, Any], frozen: bool) -> None:
    network = tiny("dspark", TOY, **variant)
    _, _, output = forced_round(network, TOY, IDS, DRAFTS)
    proposal, shown, _ = forced_round(network.freeze() if frozen else network, TOY, IDS, DRAFTS)
    torch.testing.assert_close(shown, output.logits[0], rtol=1e-4, atol=1e-4)
    assert proposal.confidence is not None
    assert output.confidence is not None
    assert proposal.confidence.shape == proposal.tokens.shape
    torch.testing.assert_close(proposal.confidence, output.confidence.sigmoid(), rtol=1e-4, atol=1e-5)
    assert 0 < proposal.confidence.min() < proposal.confidence.max() < 1


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_a_draft_knows_the_one_before_it_and_its_confidence_does_not_know_the_draft(head: str) -> None:
    network = tiny("dspark", TOY, options={"head": head})
    _, logits, output = forced_round(network, TOY, IDS, DRAFTS)
    _, other, changed = forced_round(network, TOY, IDS, (DRAFTS[0], 1, *DRAFTS[2:]))
    differs = (logits - other).abs().amax(-1).gt(1e-6).tolist()
    assert differs[:3] == [False, False, True]
    assert differs[3] == (head == "rnn")
    assert output.confidence is not None
    assert changed.confidence is not None
    assert output.confidence[0].eq(changed.confidence[0]).tolist() == [True, True, False, True]


def test_untrained_it_drafts_as_dflash_does() -> None:
    plan = recipe(drafter={"kind": "dspark", "options": {"head": "rnn"}}).drafter
    dspark = DSpark(DSpark.configure(plan, TOY.info, None)).attach(TOY)
    dspark.start(TOY, torch.Generator().manual_seed(0))
    plan = recipe(drafter={"kind": "dflash", "options": {"slots": "anchor_predicts"}}).drafter
    dflash = DFlash(DFlash.configure(plan, TOY.info, None)).attach(TOY)
    dflash.body.load_state_dict(dspark.body.state_dict())
    pair = [forced_round(network.eval(), TOY, IDS, DRAFTS[:3])[1] for network in (dspark, dflash)]
    torch.testing.assert_close(*pair)
    assert not torch.equal(dspark.markov.prev_token_embedding.weight, torch.zeros(12, 8))


def test_the_recipe_is_the_papers() -> None:
    plan = load_recipe("dspark")
    layer = BackboneConfig(576, 30, 9, 3, 64, 1536, qk_norm=False)
    info = TargetInfo("smollm2-135m", 49152, 576, 30, 8192, frozenset({0}), "", layer)
    config = DSpark.configure(plan.drafter, info, None)
    assert (config.head, config.rank, config.slots, config.K) == ("vanilla", 256, "anchor_predicts", 7)
    assert config.taps == shallow_taps(30, 5)
    weights = {name: value for name, value in plan.stages[-1].losses.model_dump().items() if value}
    assert weights == {"ce": 0.1, "l1": 0.9, "confidence": 1.0}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": "lstm"}, "drafter.options.head does not fit the drafter 'dspark': .*'vanilla', 'gated' or 'rnn'"),
        ({"haed": "rnn"}, "drafter.options.haed does not fit .* Known options: head, slots"),
    ],
)
def test_what_it_does_not_know_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DSpark.configure(recipe(drafter={"kind": "dspark", "options": options}).drafter, TOY.info, None)


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_it_learns(head: str, tmp_path: Path) -> None:
    """Confidence is held against the true chance of acceptance, which moves while the drafter learns."""
    drafter = {"kind": "dspark", "options": {"head": head}, "history": 8}
    learns(drafter, tmp_path, losses={"ce": 0.1, "l1": 0.9, "confidence": 5.0}, steps=150)
    trained, _ = load_drafter(tmp_path / "drafter", TOY.info)
    trained.attach(TOY)
    settings = CaptureSettings(trained.taps, 3, history=trained.history)
    blocks = merge([block for talk in talks() if (block := Capturer(TOY, settings).capture(talk))])
    with torch.no_grad():
        output = trained(block_input(blocks, 3, trained.history))
    accepted = acceptance(output.logits, TOY.last_tap_logits(blocks.last[blocks.rows])).flatten()
    confidence = output.confidence.sigmoid().flatten()
    assert float(confidence.mean()) == pytest.approx(float(accepted.mean()), abs=0.05)
    assert torch.corrcoef(torch.stack([confidence, accepted]))[0, 1] > 0.3
