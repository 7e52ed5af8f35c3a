"""EAGLE-3 and the multi-token predictor from taps to logits, against loops; what reaches what; training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.checkpoint import load_drafter
from dlite.drafters import drafter_class
from dlite.drafters.mtp import MTP
from dlite.drafters.network import BlockInput, History
from dlite.drafters.recursive import RecursiveDrafter
from dlite.errors import ConfigError
from dlite.nn import naive, naive_recursive
from dlite.target.base import Target
from dlite.target.hf import HFTarget
from dlite.train.held_out import held_out_tau
from dlite.train.stages import stage_network
from tests.drafters.support import tiny
from tests.features.support import TOY
from tests.support import tiny_model
from tests.train.support import losses, recipe, run, talks

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("eagle3", {"taps": (1, 2, 4)}),
    ("eagle3", {"taps": (0, 4), "draft_vocab": True}),
    ("mtp", {"last_tap": "normed"}),
    ("mtp", {"last_tap": "raw"}),
]
REAL = torch.tensor([[True, True, True], [False, True, True], [False, False, False]])
ROWS = torch.tensor([[0, 1, 2], [0, 3, 4], [0, 1, 2]])
PIVOT = torch.tensor([3, 5, 6])


@pytest.fixture(scope="module")
def hf() -> HFTarget:
    return HFTarget(tiny_model("llama", num_hidden_layers=6), None, "tiny")


def blocks(target: Target, taps: int, K: int) -> BlockInput:
    """Three blocks over seven positions, the last at the beginning of a text."""
    generator, vocab = torch.Generator().manual_seed(3), target.info.vocab_size
    states = torch.randn(7, taps, target.info.hidden_size, generator=generator).requires_grad_()
    following = torch.randint(vocab, (7,), generator=generator)
    previous = torch.randint(vocab, (3, K), generator=generator)
    previous[:, 0] = following[PIVOT]
    distance = torch.tensor([4, 3, 2]).expand(3, 3)
    history = History(states, following, ROWS, distance, REAL, PIVOT)
    return BlockInput(states[PIVOT], previous[:, 0], torch.zeros(3).long(), previous, history)


def looped(drafter: RecursiveDrafter, target: Target, block: BlockInput) -> Tensor:
    """Logits [N,K,V'] of the same blocks, one after another."""
    assert block.history is not None
    history, head = block.history, drafter.vocab.select(target.output_weight()[0])
    normed = isinstance(drafter, MTP) and drafter.config.last_tap == "normed"

    def features(taps: Tensor) -> Tensor:
        if isinstance(drafter, MTP):
            return target.final_norm(taps[-1]) if normed else taps[-1]
        return drafter.fuse_taps.weight @ taps.flatten()  # type: ignore[operator, no-any-return]

    found = []
    for n in range(len(block.anchor)):
        past = [
            ((target.embed(history.following[row]), features(history.taps[row])), -int(distance))
            for row, distance, real in zip(history.rows[n], history.distance[n], history.real[n], strict=True)
            if real
        ]
        handed_on, logits = features(block.taps[n]), []
        for k, token in enumerate(block.previous[n]):
            if normed:  # every step's input is normed, so steps are taken one by one, with those before as the past
                state = naive_recursive.steps(drafter.body, past, handed_on, [target.embed(token)], k - 1)[0]
                past.append(((target.embed(token), handed_on), k - 1))
                handed_on = hidden = naive.rms_norm(drafter.body.norm, state)
            else:
                words = list(target.embed(block.previous[n, : k + 1]))
                state = naive_recursive.steps(drafter.body, past, features(block.taps[n]), words, -1)[k]
                hidden = naive.rms_norm(drafter.body.norm, state)
            logits.append(head @ hidden)
        found.append(torch.stack(logits))
    return torch.stack(found)


@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_values_and_gradients_equal_the_loops(name: str, settings: dict[str, Any], hf: HFTarget) -> None:
    drafter = tiny(name, hf, **settings).requires_grad_(True)
    block = blocks(hf, len(drafter.taps), 3)
    assert block.history is not None
    found, wanted = drafter(block).logits, looped(drafter, hf, block)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    learned, pull = list(drafter.parameters()), torch.randn_like(found)
    if settings.get("last_tap") != "normed":  # the target's own norm passes no gradient on
        learned.append(block.history.taps)
    gradients = [torch.autograd.grad(x, learned, pull, retain_graph=True) for x in (found, wanted)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3 * float(b.abs().max()))


@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_what_a_block_may_see(name: str, settings: dict[str, Any]) -> None:
    """Its history and pivot, and nothing else: neither masked rows, nor what another block reads."""
    drafter = tiny(name, TOY, **settings)
    block = blocks(TOY, len(drafter.taps), 3)
    assert block.history is not None
    logits, seen = drafter(block).logits, [{0, 1, 2, 3}, {3, 4, 5}, {6}]
    for n, expected in enumerate(seen):
        gradient = torch.autograd.grad(logits[n].square().sum(), block.history.taps, retain_graph=True)[0]
        assert {int(row) for row in gradient.abs().sum((1, 2)).nonzero()} == expected


@pytest.mark.parametrize(("name", "settings"), KINDS)
def test_the_token_behind_a_position_counts_and_the_last_true_token_does_not(
    name: str, settings: dict[str, Any]
) -> None:
    drafter = tiny(name, TOY, **settings)
    block = blocks(TOY, len(drafter.taps), 3)
    history = block.history
    assert history is not None
    base = drafter(block).logits
    other = history.following.clone()
    other[1] = (other[1] + 1) % TOY.info.vocab_size
    moved = drafter(replace(block, history=replace(history, following=other))).logits
    assert [not torch.allclose(a, b) for a, b in zip(moved, base, strict=True)] == [True, False, False]
    shorter = drafter(replace(block, previous=block.previous[:, :2])).logits
    torch.testing.assert_close(shorter, base[:, :2])


@pytest.mark.parametrize("name", ["eagle3", "mtp"])
def test_a_window_of_one_keeps_nothing(name: str, hf: HFTarget) -> None:
    drafter = tiny(name, hf, taps=(1, 4), window=1)
    assert drafter.history == 0
    assert drafter.new_memory(2) is None
    assert drafter.state_bytes(10) == drafter.state_bytes(1000) == 4 * hf.info.hidden_size


@pytest.mark.parametrize(("window", "history"), [(None, 63), (5, 4), (200, 63)])
def test_training_shows_no_more_than_the_window(window: int | None, history: int, hf: HFTarget) -> None:
    assert tiny("mtp", hf, window=window).history == history


@pytest.mark.parametrize("name", ["eagle3", "mtp"])
def test_unknown_options_are_refused(name: str, hf: HFTarget) -> None:
    with pytest.raises(ConfigError, match=f"options.x does not fit the drafter '{name}'"):
        tiny(name, hf, taps=(1, 4), options={"x": 1})


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("eagle3", {"losses": {"kl": 1.0}}),
        ("mtp", {"losses": {"ce": 1.0}}),
        ("mtp", {"losses": {"ce": 0.1, "l1": 1.0}}),
    ],
)
def test_it_learns(name: str, stage: dict[str, Any], tmp_path: Path) -> None:
    network = {"kind": name, "taps": (0, 2, 5), "history": 6}
    gamma = -1 / math.log(0.8)
    plan = recipe(
        [{"name": "train", "steps": 60, "lr": 1e-2, **stage}], drafter=network, batch_sequences=4, gamma=gamma
    )
    folder = run(plan, tmp_path)
    values = [row["loss"] for row in losses(tmp_path)]
    assert sum(values[-5:]) < 0.8 * sum(values[:5])
    drafter, _ = load_drafter(folder, TOY.info)
    fresh = stage_network(drafter_class(name), drafter.config, plan.stages[0], TOY, None, None, 0)
    prompts = [c.ids[:5] for c in talks()]
    untrained = held_out_tau(TOY, fresh.freeze(), prompts, 12)["tau"]
    assert held_out_tau(TOY, drafter.attach(TOY).freeze(), prompts, 12)["tau"] > untrained + 0.5
