"""The loss of a stage against loops over its blocks; the draft vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dlite.config import Losses, TrainRecipe
from dlite.drafters.dlite import DLite
from dlite.drafters.network import DraftOutput, DraftVocab
from dlite.errors import ConfigError
from dlite.features.blocks import Blocks, merge
from dlite.features.capture import Capturer
from dlite.nn import naive
from dlite.train.stages import block_input, frequent_tokens, stage_loss
from dlite.types import Conversation
from tests.features.support import SETTINGS, TOY
from tests.train.support import recipe, talks

GAMMA = 1.7
NAMES = ("ce", "kl", "l1", "kl_teacher")


def blocks(K: int) -> Blocks:
    """Whole and short blocks of a few conversations."""
    capturer = Capturer(TOY, replace(SETTINGS, K=K, whole_blocks=False, anchors_per_sequence=5))
    return merge([capturer.capture(c) for c in talks()[:3]])


def slow_loss(logits: Tensor, given: Blocks, name: str, words: Sequence[int], teacher: Tensor) -> tuple[Tensor, float]:
    """(weighted sum, sum of weights) of one term, block by block."""
    total, weight = logits.new_zeros(()), 0.0
    for n in range(len(given)):
        w = naive.position_weights(logits.shape[1], GAMMA, [int(given.counted[n])])[0]
        for i in range(logits.shape[1]):
            label = int(given.labels[n, i])
            if not w[i] or label not in words:
                break  # a block ends at the first label that does not count
            p = TOY.last_tap_logits(given.last[given.rows[n, i]])[list(words)]
            q = logits[n, i]
            term = {
                "ce": lambda q=q, label=label: naive.cross_entropy(q, words.index(label)),
                "kl": lambda q=q, p=p: naive.forward_kl(q, p),
                "l1": lambda q=q, p=p: naive.l1_distance(q, p),
                "kl_teacher": lambda q=q, n=n, i=i: naive.forward_kl(q, teacher[n, i]),
            }[name]()
            total, weight = total + w[i] * term, weight + w[i]
    return total, weight


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [tuple(range(12)), (0, 1, 2, 4, 5, 6, 8, 9, 11)], ids=["all", "draft vocabulary"])
@pytest.mark.parametrize("K", [3, 2])
def test_a_stage_loss_equals_the_loops(name: str, words: tuple[int, ...], K: int) -> None:
    given = blocks(3)
    torch.manual_seed(0)
    logits = torch.randn(len(given), K, len(words), requires_grad=True)
    teacher = torch.randn(len(given), K, len(words))
    vocab = DraftVocab(12, words if len(words) < 12 else None)
    found, parts = stage_loss(
        DraftOutput(logits), given, Losses(**{name: 2.0}), TrainRecipe(gamma=GAMMA), TOY, vocab, teacher
    )
    wanted, weight = slow_loss(logits, given, name, words, teacher)
    assert weight > 0
    assert found.weight.item() == pytest.approx(weight, rel=1e-5)
    assert parts[name] == pytest.approx(wanted.item(), rel=1e-4)
    torch.testing.assert_close(found.sum, 2 * wanted, rtol=1e-4, atol=1e-5)
    gradients = torch.autograd.grad(found.sum, logits)[0], torch.autograd.grad(2 * wanted, logits)[0]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_terms_add_up_with_their_weights() -> None:
    given = blocks(3)
    logits = torch.randn(len(given), 3, 12, generator=torch.Generator().manual_seed(0))
    found, parts = stage_loss(
        DraftOutput(logits), given, Losses(ce=0.1, l1=1.0), TrainRecipe(gamma=GAMMA), TOY, DraftVocab(12, None), None
    )
    assert found.sum.item() == pytest.approx(0.1 * parts["ce"] + parts["l1"], rel=1e-5)
    assert parts.keys() == {"ce", "l1"}


def test_each_draft_reads_the_token_before_it() -> None:
    given = blocks(3)
    read = block_input(given, 3, 0)
    assert read.previous[:, 0].tolist() == given.anchor.tolist()
    assert torch.equal(read.previous[:, 1:], given.labels[:, :2])
    assert torch.equal(read.taps, given.taps[given.pivot])
    assert read.history is None
    assert block_input(given, 2, 0).previous.shape[1] == 2


def said(ids: Sequence[int], wrote: Sequence[bool]) -> Conversation:
    return Conversation("a", "s", tuple(ids), tuple(wrote), finished=True, looping=False)


def test_frequent_tokens_are_those_the_target_wrote() -> None:
    talk = said([7, 7, 7, 7, 3, 3, 3, 5, 5, 9, 1], [False] * 4 + [True] * 7)
    assert frequent_tokens([talk], None, [0]) is None
    assert frequent_tokens([talk], 3, [0]) == (0, 3, 5)
    assert frequent_tokens([talk], 4, [5]) == (1, 3, 5, 9)
    assert frequent_tokens([talk, talk], 4, [0]) == (0, 1, 3, 5)  # of equally frequent ones the smaller id
    assert frequent_tokens([talk], 99, [0]) == (0, 1, 3, 5, 9)


def test_a_network_takes_the_targets_sizes_unless_told() -> None:
    own = DLite.configure(recipe().drafter, TOY.info, None)
    assert own.backbone.num_layers == 1
    assert (own.backbone.hidden_size, own.backbone.num_heads, own.backbone.head_dim) == (16, 2, 8)
    assert (own.taps, own.vocab_size, own.num_target_layers) == ((0, 1, 5), 12, 6)
    told = DLite.configure(
        recipe(drafter={"num_kv_heads": 2, "intermediate_size": 5, "taps": (1, 3, 5)}).drafter, TOY.info, (1, 2)
    )
    assert (told.backbone.num_kv_heads, told.backbone.intermediate_size) == (2, 5)
    assert (told.taps, told.draft_vocab) == ((1, 3, 5), (1, 2))


def test_acceptance_weighs_positions_and_rounds_count_blocks_as_the_loops_do() -> None:
    """D-PACE's weights are constants: their gradient must not flow. Expected rounds: K / (1 + sum of prefix products)."""
    given = blocks(3)
    torch.manual_seed(1)
    logits = torch.randn(len(given), 3, 12, requires_grad=True)
    settings = TrainRecipe(weights="acceptance")
    found, _ = stage_loss(DraftOutput(logits), given, Losses(ce=1.0), settings, TOY, DraftVocab(12, None), None)
    rounds, _ = stage_loss(
        DraftOutput(logits), given, Losses(rounds=1.0), TrainRecipe(), TOY, DraftVocab(12, None), None
    )
    total, weight, spent, tokens = logits.new_zeros(()), 0.0, logits.new_zeros(()), 0
    for n in range(len(given)):
        chance, length = logits.new_ones(()), logits.new_ones(())
        for i in range(int(given.counted[n])):
            p = TOY.last_tap_logits(given.last[given.rows[n, i]]).softmax(-1)
            q = logits[n, i].softmax(-1)
            total = total - chance.detach() * q[given.labels[n, i]].log()
            weight += float(chance.detach())
            chance = chance * torch.minimum(p, q).sum()
            length = length + chance
        spent, tokens = spent + int(given.counted[n]) / length, tokens + int(given.counted[n])
    assert found.weight.item() == pytest.approx(weight, rel=1e-5)
    torch.testing.assert_close(found.sum, total, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(rounds.sum, spent, rtol=1e-4, atol=1e-5)
    for fast, slow in ((found.sum, total), (rounds.sum, spent)):
        pair = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (fast, slow)]
        torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("words", [tuple(range(12)), (0, 1, 2, 4, 5, 6, 8, 9, 11)], ids=["all", "draft vocabulary"])
def test_confidence_and_candidates_are_held_against_their_own_positions(words: tuple[int, ...]) -> None:
    given = blocks(3)
    torch.manual_seed(2)
    logits, confidence = torch.randn(len(given), 3, len(words)), torch.randn(len(given), 3)
    scores, rows = torch.randn(len(given), 3, len(words)).topk(4)
    output = DraftOutput(logits, confidence, (rows, scores))
    vocab = DraftVocab(12, words if len(words) < 12 else None)
    _, parts = stage_loss(
        output, given, Losses(confidence=1.0, candidates=1.0), TrainRecipe(gamma=GAMMA), TOY, vocab, None
    )
    sure = chosen = 0.0
    for n in range(len(given)):
        weights = naive.position_weights(3, GAMMA, [int(given.counted[n])])[0]
        for i in range(3):
            label = int(given.labels[n, i])
            if not weights[i] or label not in words:
                break
            p = TOY.last_tap_logits(given.last[given.rows[n, i]])[list(words)]
            sure += weights[i] * float(naive.acceptance_entropy(confidence[n, i], logits[n, i], p))
            chosen += weights[i] * float(naive.candidate_entropy(scores[n, i], rows[n, i].tolist(), words.index(label)))
    assert parts == pytest.approx({"confidence": sure, "candidates": chosen}, rel=1e-4)


@pytest.mark.parametrize("name", ["confidence", "candidates"])
def test_a_loss_of_a_head_that_is_not_there_is_refused(name: str) -> None:
    given = blocks(3)
    output = DraftOutput(torch.zeros(len(given), 3, 12))
    with pytest.raises(ConfigError, match=f"losses.{name} has a weight, but this drafter has no such head"):
        stage_loss(output, given, Losses(**{name: 1.0}), TrainRecipe(), TOY, DraftVocab(12, None), None)
