"""What the contract cannot see of DFlow: what a round leaves reaches the right placeholders, in decoding and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.drafters.dflash import DFlash
from dlite.drafters.dflow import DFlow, Standing, halving
from dlite.drafters.fused import FusedConfig
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.features.blocks import Blocks
from dlite.features.capture import Capturer, CaptureSettings
from dlite.nn import naive_relay
from dlite.nn.relay import Left, join
from dlite.target.base import Target
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.train.stages import block_input
from dlite.types import Conversation, Proposal, View
from tests.drafters.learning import learns
from tests.drafters.support import Listener, tiny
from tests.support import Recorder, decode, outcome, plain, shapes, tiny_model

TOY = ToyTarget(sharpness=4.0, stop=False)
PROMPTS = [(3, 1, 4, 1, 5, 9, 2, 6), (2, 7), (1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 1, 8, 2, 8)]


@pytest.fixture(scope="module")
def hf() -> HFTarget:
    return HFTarget(tiny_model("llama", context=200, num_hidden_layers=6), None, "tiny")


@dataclass
class Eavesdropper:
    """A DFlow, with what each round had been left, by the committed tokens."""

    inner: Any
    left: dict[tuple[int, ...], Left] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.taps, self.max_drafts = self.inner.name, self.inner.taps, self.inner.max_drafts

    def propose(self, view: View, counts: Sequence[int], chooser: Any) -> Proposal:
        for b, (tokens, row) in enumerate(zip(view.tokens, view.rows, strict=True)):
            if counts[b]:
                self.left[tuple(tokens)] = view.memory.left([row])
        return self.inner.propose(view, counts, chooser)

    def new_memory(self, rows: int) -> Any:
        return self.inner.new_memory(rows)

    def state_bytes(self, context: int) -> int:
        return self.inner.state_bytes(context)


def captured(network: Any, target: Target, ids: tuple[int, ...], start: int) -> Blocks:
    """Every block of a text whose target wrote all from ``start`` on."""
    wrote = (False,) * start + (True,) * (len(ids) - start)
    settings = CaptureSettings(network.taps, network.config.K, history=network.history, whole_blocks=False)
    blocks = Capturer(target, settings).capture(Conversation("c", "s", ids, wrote, finished=True, looping=False))
    assert blocks is not None
    return blocks


def test_untrained_it_drafts_as_dflash(hf: HFTarget) -> None:
    network = tiny("dflow", hf)
    network.relay.silence()
    config = FusedConfig(**{name: getattr(network.config, name) for name in FusedConfig.__dataclass_fields__})
    dflash = DFlash(config).attach(hf)
    dflash.load_state_dict({k: v for k, v in network.state_dict().items() if k.startswith("body.")})
    requests = [Request(ids, 24) for ids in PROMPTS]
    ours, theirs = Eavesdropper(network.freeze()), Recorder(dflash.freeze())
    heard = Recorder(ours)
    assert outcome(decode(hf, heard, requests)) == outcome(decode(hf, theirs, requests))
    assert heard.drafts == theirs.drafts
    assert sum(len(left.slot) > 0 for left in ours.left.values()) > 10  # there was something to read


def test_started_it_is_silent(hf: HFTarget) -> None:
    network = tiny("dflow", hf)
    network.start(hf, torch.Generator().manual_seed(0))
    assert torch.equal(network.relay(*torch.randn(3, 4, hf.info.hidden_size)), torch.zeros(4, hf.info.hidden_size))


def test_what_is_left_changes_drafts_and_not_the_text(hf: HFTarget) -> None:
    live, silent = tiny("dflow", hf), tiny("dflow", hf)
    silent.relay.silence()
    request = Request(PROMPTS[2], 40)
    recorders = [Recorder(network.freeze()) for network in (live, silent)]
    texts = [outcome(decode(hf, recorder, [request])) for recorder in recorders]
    assert texts[0] == texts[1] == outcome(plain(hf, [request]))
    assert recorders[0].drafts != recorders[1].drafts


def test_in_training_the_same_rows_give_the_logits_of_decoding(hf: HFTarget) -> None:
    network = tiny("dflow", hf)
    spy = Eavesdropper(tiny("dflow", hf).freeze())
    listener = Listener(spy)
    result = decode(hf, listener, [Request(PROMPTS[2], 40)])[0]
    ids = (*PROMPTS[2], *result.token_ids)
    blocks = captured(network, hf, ids, len(PROMPTS[2]))
    block = block_input(blocks, 4, network.history)
    here = Standing.of(block, network.body.shared_past(block.history))
    parts, rows = [network.nothing()], []
    for row, a in enumerate(range(len(PROMPTS[2]), len(ids) - 1)):
        if ids[: a + 1] in listener.heard:
            left = spy.left[ids[: a + 1]]
            parts.append(replace(left, block=torch.full_like(left.block, row)))
            rows.append((row, listener.heard[ids[: a + 1]][0]))
    assert sum(len(part.slot) > 0 for part in parts) > 5
    with torch.no_grad():
        trained = network.logits(here.anchor, 4, here.past, join(parts))
    for row, logits in rows:
        torch.testing.assert_close(logits, trained[row, : len(logits)], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("context", [64, 3])
@pytest.mark.parametrize("which", ["toy", "hf"])
@pytest.mark.parametrize("draft_vocab", [False, True])
def test_rounds_made_up_for_training_equal_loops(which: str, context: int, draft_vocab: bool, hf: HFTarget) -> None:
    """Which blocks read what, against a loop over blocks in which the target reads the tokens one list at a time."""
    target: Target = TOY if which == "toy" else hf
    start = 4
    text = (*PROMPTS[0], *plain(target, [Request(PROMPTS[0], 60)])[0].token_ids)
    ids = tuple((t + 3) % 11 if i % 7 == 6 else t for i, t in enumerate(text))  # so that rounds end at many places
    network = tiny("dflow", target, K=5, history=128, draft_vocab=draft_vocab, options={"context": context})
    with torch.no_grad():
        for weight in network.body.parameters():
            weight.mul_(0.3)  # towards the target's own matrices, so that some drafts are right
    blocks = captured(network, target, ids, start)
    block = block_input(blocks, 5, network.history)
    here = Standing.of(block, network.body.shared_past(block.history))
    anchors = list(range(start, len(ids) - 1))
    assert here.anchor.tolist() == [ids[a] for a in anchors]
    found = network.left_to_training(here)

    def draft(begins: Mapping[int, int], earlier: naive_relay.Rounds) -> dict[int, list[int]]:
        drafts = {}
        for n, begin in begins.items():
            alone = captured(network, target, ids[: begin + 2], begin)
            part = block_input(alone, 1, network.history)
            rows, rejected = earlier.get(n, ([], 0))
            slots = torch.arange(1, len(rows) + 1)
            own = Left(torch.stack(rows), slots * 0, slots, slots * 0 + rejected) if rows else network.nothing()
            past = network.body.shared_past(part.history)
            words = network.logits(part.anchor, 5, past, own)[0].argmax(-1)
            drafts[n] = (words if network.vocab.ids is None else network.vocab.ids[words]).tolist()
        return drafts

    def states(anchor: int, drafts: Sequence[int]) -> list[Tensor]:
        # The first token of all is behind no captured position, so it is not known.
        tokens = [*ids[max(1, anchor - context) : anchor], *drafts]
        taps = target.forward(torch.tensor([tokens]), target.new_cache(1, len(tokens)), 0, network.taps, "taps").taps
        return list(network.body.fuse(taps[0, -len(drafts) :].clone()))

    with torch.no_grad():
        wanted = {}
        for depth in (1, 2):
            chosen = list(range(depth, len(anchors), 3))
            rounds = naive_relay.rounds_before([anchors[n] for n in chosen], depth, ids, 5, draft, states, 0)
            wanted |= {chosen[i]: rows for i, rows in rounds.items()}
    assert sorted(set(found.block.tolist())) == sorted(wanted)
    assert len(wanted) > 3
    assert draft_vocab or len({len(rows) for rows, _ in wanted.values()}) > 1
    for n, (rows, rejected) in wanted.items():
        mine = found.block == n
        assert found.slot[mine].tolist() == list(range(1, len(rows) + 1))
        assert set(found.rejected[mine].tolist()) == {rejected}
        torch.testing.assert_close(found.rows[mine], torch.stack(rows), rtol=1e-3, atol=1e-3)


def test_numbers_that_halve() -> None:
    assert halving(16, 9).tolist() == [1, 2, 1, 3, 1, 2, 1, 4, 1, 2, 1, 3, 1, 2, 1, 5]
    assert halving(8, 2).tolist() == [1, 2] * 4


def test_gradients_reach_the_relay_and_training_is_repeatable(hf: HFTarget) -> None:
    network: DFlow = tiny("dflow", hf).requires_grad_(True).train()
    ids = (*PROMPTS[0], *plain(hf, [Request(PROMPTS[0], 40)])[0].token_ids)
    block = block_input(captured(network, hf, ids, 4), 4, network.history)
    first, second = network(block).logits, network(block).logits
    assert torch.equal(first, second)
    assert not torch.equal(first, network.eval()(block).logits)
    first.square().sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or p.grad.abs().sum() == 0] == []


def test_short_blocks_leave_out_what_lies_behind_them(hf: HFTarget) -> None:
    network = tiny("dflow", hf).train()
    ids = (*PROMPTS[0], *plain(hf, [Request(PROMPTS[0], 40)])[0].token_ids)
    blocks = captured(network, hf, ids, 4)
    assert network(block_input(blocks, 2, network.history)).logits.shape[1] == 2


def test_a_resumed_request_has_lost_what_its_last_round_left_and_nothing_else(hf: HFTarget) -> None:
    request = Request(PROMPTS[2], 40)

    def run(lose: str) -> tuple[Any, dict[tuple[int, ...], list[int]], bool]:
        recorder = Recorder(tiny("dflow", hf).freeze())
        engine = Engine(hf, recorder, max_batch=1)
        number = engine.submit(request)
        had_some = False
        for step in range(1, 100):
            engine.step()
            memory: Any = engine._memory
            if step >= 2 and not had_some and memory.context[0] is not None:
                had_some = True
                if lose == "relay":
                    memory.context[0] = None
                elif lose == "all":
                    engine.preempt(number)
            if not engine.busy:
                break
        return outcome([engine.result(number)]), recorder.drafts, had_some

    kept, lost, resumed = run("nothing"), run("relay"), run("all")
    assert kept[2]
    assert lost[2]
    assert resumed[2]
    assert kept[0] == lost[0] == resumed[0]
    assert lost[1] == resumed[1]
    assert kept[1] != lost[1]


def test_a_request_that_wants_fewer_drafts_leaves_what_it_would_alone(hf: HFTarget) -> None:
    requests = [Request(ids, 30, K) for ids, K in zip(PROMPTS, (4, 1, 2), strict=True)]
    together = Recorder(tiny("dflow", hf).freeze())
    found = decode(hf, together, requests, max_batch=3)
    alone: dict[tuple[int, ...], list[int]] = {}
    for request, result in zip(requests, found, strict=True):
        single = Recorder(tiny("dflow", hf).freeze())
        assert shapes(decode(hf, single, [request], max_batch=1)[0]) == shapes(result)
        alone |= single.drafts
    assert together.drafts == alone


def test_it_learns_on_the_toy(tmp_path: Path) -> None:
    learns({"kind": "dflow", "options": {"context": 4}}, tmp_path, steps=200)
