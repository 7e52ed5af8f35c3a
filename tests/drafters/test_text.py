"""The memory of drafters that read tokens: what it knows after every step, and proposals without q."""

from __future__ import annotations

import pytest
import torch

from dlite.drafters.ngram import NGramIndex
from dlite.drafters.text import TextMemory, certain

NO_TAPS = torch.zeros(1, 3, 0, 0)


def test_an_anchor_that_was_read_is_not_appended_twice_and_rejected_drafts_never() -> None:
    memory = TextMemory(2, NGramIndex)
    memory.observe(1, torch.tensor([[5, 6, 7]]), NO_TAPS, [3])
    assert memory.read(1, [5, 6, 7, 8]).ids == [5, 6, 7, 8]
    memory.observe(1, torch.tensor([[8, 1, 2]]), NO_TAPS, [2])  # the draft 2 was rejected
    assert memory.texts[1].ids == [5, 6, 7, 8, 1]
    memory.observe(1, torch.tensor([[3]]), NO_TAPS, [1])  # a round without a proposal: nothing was read before
    assert memory.texts[1].ids == [5, 6, 7, 8, 1, 3]
    assert memory.texts[0].ids == []


def test_rows_move_and_come_back_from_a_prefix() -> None:
    memory = TextMemory(2, NGramIndex)
    memory.observe(0, torch.tensor([[1, 2, 3, 1], [7, 8, 9, 7]]), NO_TAPS, [4, 4])
    saved = memory.export(1, 4)
    memory.move(1, 0)
    memory.clear(1)
    assert (memory.texts[0].ids, memory.texts[1].ids) == ([7, 8, 9, 7], [])
    assert memory.texts[0].continuation(2) == [8, 9]
    memory.restore(1, saved, 3)
    assert memory.read(1, [7, 8, 9, 8]).continuation(5) == [9, 8]
    assert saved == [7, 8, 9, 7]


@pytest.mark.parametrize("drafts", [[[3, 4], [], [5]], [[], []]])
def test_rows_of_any_length_make_a_proposal(drafts: list[list[int]]) -> None:
    proposal = certain(drafts, torch.zeros(3, dtype=torch.long), ["a"] * len(drafts))
    assert proposal.tokens.shape == (len(drafts), max(map(len, drafts)))
    assert proposal.tokens.dtype == proposal.num_tokens.dtype == torch.long
    found = zip(proposal.tokens.tolist(), proposal.num_tokens.tolist(), strict=True)
    assert [tokens[:count] for tokens, count in found] == drafts
    assert proposal.probs is None
