"""Training, decoding and fixture agree for every drafter; a planted fault is found and named."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dlite.checkpoint import load_drafter
from dlite.drafters.dlite import DLite
from dlite.engine import decode
from dlite.errors import DataError
from dlite.nn.layout import BlockLayout
from dlite.serve.doctor import Checkup, examine, network_maker, to_json
from dlite.serve.golden import Golden, load_golden, make_golden, save_golden
from dlite.serve.replay import Decoding, Training, replayers
from dlite.target.base import TargetOutput
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from tests.drafters.support import ROUND_LOCAL, TRAINED, label, tiny
from tests.support import tiny_drafter, tiny_model

GOLDEN = Path(__file__).parent.parent / "golden"
PROMPT = (3, 1, 4, 1, 5, 9)
VOCAB = tuple(range(1, 36, 2))


@pytest.fixture(scope="module")
def hf() -> HFTarget:
    """A transformer with a final norm and states that depend on the whole history."""
    return HFTarget(tiny_model("llama", context=200, num_hidden_layers=6), None, "tiny")


@pytest.fixture(scope="module")
def golden(hf: HFTarget) -> Golden:
    return make_golden(hf, lambda: fresh(hf), PROMPT, rounds=9)


def fresh(target: Any) -> DLite:
    """A DLite in which everything a fault could touch is there: a group of two, an id map, depth and norm of its own."""
    network = tiny_drafter(target, anchor_group=2, draft_vocab=VOCAB)
    with torch.no_grad():
        network.context_norm.weight.add_(torch.rand(network.context_norm.weight.shape, generator=torch.Generator()))
    return network


@pytest.mark.parametrize("case", TRAINED, ids=label)
def test_training_and_decoding_agree(case: Any, hf: HFTarget) -> None:
    def make() -> Any:
        network = tiny(case[0], hf, **case[1])
        if case[0] in ROUND_LOCAL:
            getattr(network, ROUND_LOCAL[case[0]]).silence()
        return network

    made = make_golden(hf, make, PROMPT)
    assert [one.sentence for one in examine(made, hf, make)] == [
        "training: agrees in 8 rounds",
        "decoding: agrees in 8 rounds",
        "vllm: not asked, vLLM is not installed",
        "sglang: not asked, SGLang is not installed",
    ]


def test_every_row_of_a_verification_is_a_pivot(golden: Golden) -> None:
    """0, 1, ... K drafts accepted, and once more from the beginning."""
    accepted = [golden.script.accepted(anchor) for anchor in golden.script.anchors]
    assert accepted == [0, 1, 2, 3, 4, 0, 1, 2, None]


# --- eight faults, planted in what the doctor is given ---


@dataclass
class Bent:
    """A target whose passes are tampered with."""

    inner: Any
    bend: Callable[[TargetOutput, Any], TargetOutput]
    taps: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda taps: taps

    def forward(self, tokens: Any, cache: Any, first: int, taps: tuple[int, ...], rows: Any) -> TargetOutput:
        output = self.inner.forward(tokens, cache, first, self.taps(taps), rows)
        return self.bend(output, self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Slipped(BlockLayout):
    """Each slot reads the row before its own."""

    def drafts(self, hidden: Any) -> Any:
        return hidden[:, self.group - 1 : -1]


class Late(BlockLayout):
    """The block stands one place too far."""

    def query_positions(self, K: int | None = None) -> Any:
        return super().query_positions(K) + 1


def last_normed(output: TargetOutput, target: Any) -> TargetOutput:
    last = target.final_norm(output.taps[:, :, -1:])
    return replace(output, taps=torch.cat([output.taps[:, :, :-1], last], 2))


def row_before(output: TargetOutput, target: Any) -> TargetOutput:
    taps = output.taps
    return replace(output, taps=torch.cat([taps[:, :1], taps[:, :-1]], 1))


def changed(**attributes: Any) -> Callable[[DLite], None]:
    def plant(network: DLite) -> None:
        for name, value in attributes.items():
            setattr(network, name, value)

    return plant


def wrong_placeholder(network: DLite) -> None:
    network.placeholder.data.copy_(network._embedding[0].embed(torch.tensor([7]))[0])


def wrong_words(network: DLite) -> None:
    target = copy(network._embedding[0])
    target.embed = lambda ids: network_embed((ids + 1) % 37)
    network_embed, network._embedding = network._embedding[0].embed, [target]


def shuffled_ids(network: DLite) -> None:
    network.vocab.ids = network.vocab.ids.roll(1)


def shuffled_rows(network: DLite) -> None:
    network.vocab.rows = network.vocab.rows.roll(2)


def exchanged(network: DLite) -> None:
    inner_propose, inner_forward = network.propose, network.forward
    network.propose = lambda view, *rest: inner_propose(replace(view, anchor=view.before, before=view.anchor), *rest)
    network.forward = lambda block: inner_forward(replace(block, anchor=block.before, before=block.anchor))


def no_depth(network: DLite) -> None:
    network.layer_depth_embedding.weight.data.zero_()


# name -> (what bends the target, what is changed in the network, the fault's name, words of the sentence)
FAULTS: dict[str, tuple[Any, Any, str, str]] = {
    "taps off by one": (
        {"bend": lambda o, t: o, "taps": lambda taps: tuple(max(0, layer - 1) for layer in taps)},
        None,
        "tap index",
        "tap 1 is the output of layer 0, expected layer 1",
    ),
    "last tap normed": ({"bend": last_normed}, None, "tap norm", "tap 3 (layer 5) is behind the final norm"),
    "slots shifted": (None, changed(layout=Slipped(4, 2)), "slot", "slot 0 reads row 1 of the block, expected row 2"),
    "positions shifted": (None, changed(layout=Late(4, 2)), "position", "expected [0, 0, 0, 0, 0, 0, 1, 2, 3, 4], shifted by +1"),
    "wrong placeholder": (None, wrong_placeholder, "placeholder", "(row 2 of the block) is the embedding of token 7"),
    "wrong embedding": (None, wrong_words, "embedding", "row 0 of the block is the embedding of token"),
    "ids shuffled": (None, shuffled_ids, "id map", "the best row of slot 0 is said to be token"),
    "rows shuffled": (None, shuffled_rows, "id map", "goes to row"),
    "before and anchor exchanged": (None, exchanged, "token order", "expected"),
    "a stale pivot": ({"bend": row_before}, None, "stale pivot", "tap 0 is that of the position -1 from the pivot (round 2"),
    "no depth embedding": (None, no_depth, "depth embedding", "the depth embedding is missing"),
    "no context norm": (None, changed(context_norm=nn.Identity()), "context norm", "are not normalised"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str, hf: HFTarget, golden: Golden) -> None:
    bent, plant, fault, words = FAULTS[name]
    target = hf if bent is None else Bent(hf, **bent)

    def make() -> DLite:
        network = fresh(hf)
        if plant:
            plant(network)
        return network

    asked = [Decoding()] if plant is None else [Training(), Decoding()]
    for one in examine(golden, target, make, asked):
        assert one.finding is not None, one.name
        assert (one.finding.fault, words in one.finding.text) == (fault, True), one.sentence


def test_tokens_exchanged_in_the_engine(hf: HFTarget, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode._view

    def wrong(*given: Any) -> Any:
        view = right(*given)
        return replace(view, anchor=view.before, before=view.anchor)

    monkeypatch.setattr(decode, "_view", wrong)
    (one,) = examine(golden, hf, lambda: fresh(hf), [Decoding()])
    assert one.sentence.startswith(
        "decoding: TOKEN ORDER: the anchor and the token before it are exchanged (round 0, anchor"
    )


def test_history_of_the_wrong_length(hf: HFTarget) -> None:
    made = make_golden(hf, lambda: tiny("dflash", hf, window=8), PROMPT)
    (one,) = examine(made, hf, lambda: tiny("dflash", hf, window=5), [Decoding()])
    assert one.finding is not None
    assert (one.finding.fault, one.finding.text) == (
        "history",
        "5 positions of history are read, expected 6 (round 0, anchor at position 6)",
    )


def test_other_weights_are_named_by_where_they_show(hf: HFTarget, golden: Golden) -> None:
    def make(part: str) -> Any:
        network = fresh(hf)
        network.get_parameter(part).data.add_(0.5)
        return network

    for part, fault in (("layers.0.mlp.up_proj.weight", "backbone"), ("sequential_head.state_proj.weight", "head")):
        found = examine(golden, hf, lambda part=part: make(part), [Training(), Decoding()])
        assert [one.finding and one.finding.fault for one in found] == [fault, fault]


def test_a_target_that_leaves_the_script_is_named(golden: Golden, hf: HFTarget) -> None:
    """From the start, and behind three rounds in which the drafter did nothing wrong."""
    start = Bent(hf, lambda output, target: replace(output, logits=-output.logits))
    (one,) = examine(golden, start, lambda: fresh(hf), [Decoding()])
    assert one.sentence == "decoding: TARGET: the target itself does not write token 6 of the fixture"
    ids = list(golden.script.ids)
    ids[-8] = (ids[-8] + 1) % 37
    other = replace(golden, script=replace(golden.script, ids=tuple(ids)))
    (one,) = examine(other, hf, lambda: fresh(hf), [Decoding()])
    assert one.finding is not None
    assert one.finding.fault in ("target", "head", "id map")


# --- fixtures on disk ---


def test_the_fixture_of_the_toy_still_holds() -> None:
    """Made by an earlier version of dlite, its drafter beside it: what changes here changes what users trained."""
    target = ToyTarget(sharpness=4.0, stop=False)
    kept = load_golden(GOLDEN / "toy.safetensors")
    results = examine(kept, target, network_maker(str(GOLDEN / "toy-drafter"), target), [Training(), Decoding()])
    assert [one.sentence for one in results] == ["training: agrees in 8 rounds", "decoding: agrees in 8 rounds"]


def test_a_fixture_comes_back_as_it_was(golden: Golden, hf: HFTarget, tmp_path: Path) -> None:
    save_golden(golden, tmp_path / "new" / "g.safetensors")
    back = load_golden(tmp_path / "new" / "g.safetensors")
    assert (back.facts, back.script) == (golden.facts, golden.script)
    assert to_json(examine(back, hf, lambda: fresh(hf)))["healthy"]


def test_fixtures_that_do_not_fit_are_refused(golden: Golden, hf: HFTarget, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="with K 4; here it is 3"):
        examine(golden, hf, lambda: tiny_drafter(hf, K=3))
    (tmp_path / "x").write_text("no")
    with pytest.raises(DataError, match="Expected a fixture made by dlite doctor --make"):
        load_golden(tmp_path / "x")
    with pytest.raises(DataError, match="does not fit 90 rounds of 4 drafts into a context of 200"):
        make_golden(hf, lambda: fresh(hf), PROMPT, rounds=90)


def test_an_engine_that_is_not_there_is_no_fault() -> None:
    assert [one.name for one in replayers()] == ["training", "decoding", "vllm", "sglang"]
    assert Checkup("vllm", skipped="vLLM is not installed").sentence == "vllm: not asked, vLLM is not installed"


def test_the_drafter_of_the_fixture_can_be_loaded() -> None:
    assert load_drafter(GOLDEN / "toy-drafter")[0].name == "dlite"
