"""Captured blocks against one whole pass of the target: the right layer at the right position."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from dlite.errors import DataError, TargetError
from dlite.features.blocks import Blocks
from dlite.features.capture import Capturer
from dlite.target.base import Rows, Target, TargetOutput
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyCache, ToyTarget
from dlite.types import Conversation
from tests.features.support import SETTINGS, TOY, conversation
from tests.support import tiny_model


def whole(target: Target, ids: tuple[int, ...], taps: tuple[int, ...]) -> Tensor:
    """Taps of every position, [T,n,D]."""
    cache = target.new_cache(1, len(ids))
    return target.forward(torch.tensor([ids]), cache, 0, taps, "taps").taps[0]


def anchors_of(blocks: Blocks) -> list[int]:
    return (blocks.place[blocks.pivot] + 1).tolist()


@pytest.fixture(scope="module", params=["toy", "qwen3"])
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "toy":
        return TOY
    return HFTarget(tiny_model("qwen3", eos_token_id=None), None, "qwen3")


def test_the_pivot_gives_its_taps_and_every_label_its_target_logits(target: Target) -> None:
    """Taps at a-1; the raw last tap at a+i-1 predicts label i, which under greedy answers is its argmax."""
    talk = conversation(target, "a", (7, 8))
    last = target.info.num_layers - 1
    settings = replace(SETTINGS, taps=(0, 2, last), whole_blocks=False)
    blocks = Capturer(target, settings).capture(talk)
    taps = whole(target, talk.ids, settings.taps)
    anchors = anchors_of(blocks)
    torch.testing.assert_close(blocks.taps[blocks.pivot], taps[[a - 1 for a in anchors]], rtol=1e-4, atol=1e-5)
    assert blocks.anchor.tolist() == [talk.ids[a] for a in anchors]
    assert blocks.before.tolist() == [talk.ids[a - 1] for a in anchors]
    assert 1 in blocks.counted.tolist()
    for n, a in enumerate(anchors):
        for i in range(1, int(blocks.counted[n]) + 1):
            raw = blocks.last[blocks.rows[n, i - 1]]
            torch.testing.assert_close(raw, taps[a + i - 1, -1], rtol=1e-4, atol=1e-5)
            assert int(target.last_tap_logits(raw).argmax()) == int(blocks.labels[n, i - 1]) == talk.ids[a + i]


def test_history_holds_the_positions_before_the_pivot() -> None:
    talk = conversation(TOY, "a", (6, 9))
    blocks = Capturer(TOY, replace(SETTINGS, history=4, anchors_per_sequence=2)).capture(talk)
    wanted = {p for a in anchors_of(blocks) for p in range(max(0, a - 5), a)}
    assert blocks.place.tolist() == sorted(wanted)
    assert torch.equal(blocks.taps, whole(TOY, talk.ids, SETTINGS.taps)[blocks.place])


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_nothing(chunk: int) -> None:
    talk = conversation(TOY, "a", (20,))
    assert same(Capturer(TOY, replace(SETTINGS, chunk=chunk)).capture(talk), Capturer(TOY, SETTINGS).capture(talk))


def test_a_beginning_shared_with_the_conversation_before_changes_nothing() -> None:
    first = conversation(TOY, "a", (8,), prompt=300)
    second = replace(first, id="b", ids=(*first.ids, 3, 4, 5, 6, 7), wrote=(*first.wrote, *[False] * 2, *[True] * 3))
    other = conversation(TOY, "c", (8,))
    capturer = Capturer(TOY, replace(SETTINGS, whole_blocks=False))
    for talk in (first, second, other, second):
        fresh = Capturer(TOY, replace(SETTINGS, whole_blocks=False))
        assert same(capturer.capture(talk), fresh.capture(talk))
    assert capturer._prefix.restored_tokens > 300


def test_nothing_behind_the_length_limit_is_read() -> None:
    talk = conversation(TOY, "a", (20,))
    blocks = Capturer(TOY, replace(SETTINGS, max_length=12, whole_blocks=False)).capture(talk)
    assert max(anchors_of(blocks)) == 10
    assert blocks.counted.tolist()[-1] == 1
    short = replace(talk, ids=talk.ids[:12], wrote=talk.wrote[:12])
    assert same(blocks, Capturer(TOY, replace(SETTINGS, whole_blocks=False)).capture(short))


def test_no_anchor_no_blocks() -> None:
    lone = Conversation("a", "s", (1, 2, 3, 4), (False, False, True, False), finished=True, looping=False)
    assert Capturer(TOY, SETTINGS).capture(lone) is None


def test_anchors_change_with_the_epoch_and_the_seed_alone() -> None:
    talk = conversation(TOY, "a", (40,))
    few = replace(SETTINGS, anchors_per_sequence=5)
    first = anchors_of(Capturer(TOY, few).capture(talk))
    assert anchors_of(Capturer(TOY, few).capture(talk)) == first
    assert anchors_of(Capturer(TOY, few).capture(talk, epoch=1)) != first
    assert anchors_of(Capturer(TOY, replace(few, seed=1)).capture(talk)) != first


class Broken(ToyTarget):
    """Its taps are not finite from position 9 on."""

    def forward(self, tokens: Tensor, cache: ToyCache, first: int, taps: tuple[int, ...], rows: Rows) -> TargetOutput:
        output = super().forward(tokens, cache, first, taps, rows)
        if output.taps.shape[1] > 9:
            output.taps[:, 9, -1] = torch.inf
        return output


def test_taps_that_are_not_finite_name_their_conversation() -> None:
    talk = conversation(TOY, "no. 7", (20,))
    with pytest.raises(DataError, match=r"conversation 'no. 7' gives taps that are not finite"):
        Capturer(Broken(stop=False), SETTINGS).capture(talk)


def same(left: Blocks, right: Blocks) -> bool:
    return all(torch.equal(getattr(left, f.name), getattr(right, f.name)) for f in fields(Blocks))


class Twisted(ToyTarget):
    """A target whose head does more than its last layer times a matrix."""

    def last_tap_logits(self, tap: Tensor, vocab: Tensor | None = None) -> Tensor:
        return -super().last_tap_logits(tap, vocab)


def test_a_head_that_the_last_tap_does_not_give_is_refused() -> None:
    """p_target would be wrong for every block, and training would quietly learn it."""
    with pytest.raises(TargetError, match="not its output matrix times its normalised last layer"):
        Capturer(Twisted(stop=False), SETTINGS).capture(conversation(TOY, "a"))
