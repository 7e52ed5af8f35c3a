"""DLite: training and decoding are the same function, and nothing is remembered between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.drafters.dlite import DLite
from dlite.drafters.network import BlockInput
from dlite.target.toy import ToyTarget
from dlite.types import View
from tests.support import tiny_drafter

TARGET = ToyTarget()
VARIANTS: list[dict[str, Any]] = [
    {}, {"anchor_group": 2}, {"placeholder": "token"}, {"last_tap": "normed"}, {"draft_vocab": (1, 3, 4, 7, 9)},
    {"history_window": 3}, {"query": "taps"},
]  # fmt: skip


class Greedy:
    """Takes the argmax and keeps the logits it saw."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The best token's id."""
        self.seen.append(logits.clone())
        return logits.argmax(-1) if ids is None else ids[logits.argmax(-1)]


def view(rows: int, taps: int, seed: int = 0) -> View:
    """What a drafter sees, at random."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(12, (rows, 2), generator=generator)
    states = torch.randn(rows, taps, TARGET.info.hidden_size, generator=generator)
    return View(tokens[:, 1], tokens[:, 0], states, tokens.tolist())


def proposed(drafter: DLite, seen: View, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(tokens [B,K], logits [B,K,V'])."""
    chooser = Greedy()
    proposal = drafter.propose(seen, counts, chooser)
    assert proposal.num_tokens.tolist() == list(counts)
    return proposal.tokens.clone(), torch.stack(chooser.seen, 1)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("frozen", [False, True])
def test_training_and_decoding_give_the_same_logits(variant: dict[str, Any], frozen: bool) -> None:
    """Slots off by one between the two is the bug this looks for."""
    drafter, seen = tiny_drafter(TARGET, **variant), view(3, 4)
    trained = tiny_drafter(TARGET, **variant)
    tokens, logits = proposed(drafter.freeze() if frozen else drafter, seen, [4, 4, 4])
    previous = torch.cat([seen.anchor[:, None], tokens[:, :-1]], 1)
    output = trained(BlockInput(seen.taps, seen.anchor, seen.before, previous))
    torch.testing.assert_close(output.logits, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_input_matters(variant: dict[str, Any]) -> None:
    drafter, seen = tiny_drafter(TARGET, **variant), view(1, 4)
    _, base = proposed(drafter, seen, [4])
    for tap in range(4):
        taps = seen.taps.clone()
        taps[:, tap] += 1
        assert not torch.allclose(proposed(drafter, View(seen.anchor, seen.before, taps, []), [4])[1], base)
    other = View((seen.anchor + 1) % 12, seen.before, seen.taps, [])
    assert not torch.allclose(proposed(drafter, other, [4])[1], base)
    older = proposed(drafter, View(seen.anchor, (seen.before + 1) % 12, seen.taps, []), [4])[1]
    assert torch.equal(older, base) == (variant.get("anchor_group") != 2)


def test_drafts_depend_on_neither_neighbours_nor_rounds_before() -> None:
    drafter, seen = tiny_drafter(TARGET), view(3, 4)
    tokens, _ = proposed(drafter, seen, [4, 2, 3])
    proposed(drafter, view(3, 4, seed=8), [4, 4, 4])
    for b in range(3):
        one = View(seen.anchor[b : b + 1], seen.before[b : b + 1], seen.taps[b : b + 1], [])
        count = [4, 2, 3][b]
        assert proposed(drafter, one, [count])[0][0].tolist() == tokens[b, :count].tolist()


def test_a_reduced_vocabulary_drafts_only_its_words() -> None:
    words = (1, 3, 4, 7, 9)
    tokens, logits = proposed(tiny_drafter(TARGET, draft_vocab=words), view(6, 4), [4] * 6)
    assert logits.shape[-1] == 5
    assert set(tokens.flatten().tolist()) <= set(words)
    assert len(tokens.unique()) > 1


def test_state_is_the_pivots_taps_alone() -> None:
    assert tiny_drafter(TARGET, taps=4).state_bytes(1000) == 4 * 4 * 16


def test_only_the_last_layers_tap_is_normed_wherever_it_stands() -> None:
    """In the field's hidden states only the entry behind the last layer has passed the final norm."""

    class Doubling(ToyTarget):
        def final_norm(self, tap: Tensor) -> Tensor:
            return 2 * tap

    target = Doubling()
    seen = view(2, 3)
    for taps, factors in (((0, 2, 5), (1, 1, 2)), ((5, 0, 2), (2, 1, 1)), ((0, 2, 4), (1, 1, 1))):
        raw = tiny_drafter(target, taps=3, last_tap="raw")
        normed = tiny_drafter(target, taps=3, last_tap="normed")
        for drafter in (raw, normed):
            drafter.taps = taps
        scaled = View(seen.anchor, seen.before, seen.taps * torch.tensor(factors)[:, None], [])
        torch.testing.assert_close(proposed(normed, seen, [4, 4])[1], proposed(raw, scaled, [4, 4])[1])


def test_taps_join_the_query_rows_once_their_matrix_has_left_zero() -> None:
    words, taps = tiny_drafter(TARGET), tiny_drafter(TARGET, query="taps")
    taps.start(TARGET, torch.Generator().manual_seed(3))
    words.load_state_dict({k: v for k, v in taps.state_dict().items() if k != "query_fuse.weight"})
    block = BlockInput(view(3, 4).taps, view(3, 4).anchor, view(3, 4).before, torch.ones(3, 4, dtype=torch.long))
    assert torch.equal(words(block).logits, taps(block).logits)
    torch.nn.init.normal_(taps.query_fuse.weight)
    assert not torch.allclose(words(block).logits, taps(block).logits)
