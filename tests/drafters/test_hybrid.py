"""Who drafts when, what is learned from it, and that every model can be a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.checkpoint import save_drafter
from dlite.drafters import load_drafter
from dlite.drafters.base import Chooser
from dlite.drafters.hybrid import PRIOR, RATE, Hybrid
from dlite.drafters.ngram import NGram
from dlite.drafters.none import NoDrafter
from dlite.drafters.suffix import Suffix
from dlite.engine.request import Request
from dlite.errors import DliteError
from dlite.sampling import SamplingParams
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.types import Proposal, View
from tests.drafters.support import TRAINED, draft_model, tiny
from tests.support import decode, outcome, plain, tiny_model

NO_TAPS = torch.zeros(2, 4, 0, 0)


@dataclass
class Nines:
    """A model that always drafts 9 and notes for whom."""

    name: str = "nines"
    taps: tuple[int, ...] = ()
    max_drafts: int = 3
    asked: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def new_memory(self, rows: int) -> None:
        """Nothing to remember."""

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """Nines."""
        assert len(chooser.batch) == len(counts)  # type: ignore[attr-defined]
        self.asked.append((list(view.rows), list(counts)))
        return Proposal(torch.full((len(counts), max(counts)), 9), torch.tensor(counts))

    def state_bytes(self, context: int) -> int:
        """Ten bytes a token."""
        return 10 * context


@dataclass
class Rows:
    """A chooser that knows only for whom it chooses."""

    batch: list[int]

    def select(self, index: Sequence[int]) -> Rows:
        """For some of them."""
        return Rows([self.batch[i] for i in index])


def view(memory: Any, *texts: list[int]) -> View:
    """A batch of texts."""
    last = torch.tensor([text[-2:] for text in texts])
    return View(last[:, 1], last[:, 0], torch.zeros(len(texts), 0, 0), texts, memory, range(len(texts)))


def test_the_model_drafts_where_no_copy_promises_more() -> None:
    hybrid = Hybrid(Nines())
    memory = hybrid.new_memory(2)
    proposal = hybrid.propose(view(memory, [1, 2, 3, 4, 1, 2, 3], [5, 6, 7]), [4, 7], Rows([0, 1]))  # type: ignore[arg-type]
    assert proposal.tokens.tolist() == [[4, 1, 2], [9, 9, 9]]
    assert proposal.num_tokens.tolist() == [3, 3]
    assert proposal.source == ["suffix", "nines"]
    assert hybrid.model.asked == [([1], [3])]  # type: ignore[attr-defined]


def test_what_the_models_rounds_got_accepted_is_what_a_copy_must_beat() -> None:
    hybrid = Hybrid(Nines())
    memory = hybrid.new_memory(2)
    texts = [1, 2, 3, 4, 1, 2], [5, 6, 7, 8]
    memory.observe(0, torch.tensor([[1, 2, 3, 4, 1], [5, 6, 7, 0, 0]]), NO_TAPS, [5, 3])
    assert memory.expected == [PRIOR, PRIOR]  # a prefill is no round
    hybrid.propose(view(memory, *texts), [3, 3], Rows([0, 1]))  # type: ignore[arg-type]
    memory.observe(0, torch.tensor([[2, 3, 4, 1], [8, 9, 9, 9]]), NO_TAPS, [3, 4])
    assert memory.expected == [PRIOR, PRIOR + RATE * (3 - PRIOR)]  # row 0 was a copy
    assert memory.text.texts[0].ids == [1, 2, 3, 4, 1, 2, 3, 4]
    memory.expected[0] = 2.5
    proposal = hybrid.propose(view(memory, [1, 2, 3, 4, 1, 2, 3, 4, 1], [5, 6, 7, 8, 9, 9, 9, 9]), [2, 0], Rows([0, 1]))  # type: ignore[arg-type]
    assert (proposal.tokens.tolist(), proposal.source) == (
        [[9, 9], [0, 0]],
        ["nines", ""],
    )  # two copies are less than 2.5
    memory.observe(0, torch.tensor([[1, 9, 9], [9, 0, 0]]), NO_TAPS[:, :3], [1, 1])
    assert memory.expected == [2.5 * (1 - RATE), PRIOR + RATE * (3 - PRIOR)]  # no drafts, nothing learned
    memory.move(0, 1)
    memory.clear(0)
    assert memory.expected == [PRIOR, 2.5 * (1 - RATE)]


FIRST = list({name: (name, settings) for name, settings in reversed(TRAINED)}.values())


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case[0])
def test_every_trained_drafter_can_be_the_model(case: tuple[str, dict[str, Any]]) -> None:
    hf = HFTarget(tiny_model("llama", context=200, num_hidden_layers=6), None, "tiny")
    check(hf, tiny(case[0], hf, **case[1]).freeze())


def test_so_can_those_without_training() -> None:
    toy = ToyTarget(sharpness=4.0, stop=False)
    for model in (draft_model(toy, 4), NGram(4), NoDrafter()):
        check(toy, model)


def check(target: Any, model: Any) -> None:
    """Texts as in plain decoding, greedy and sampled, in a batch where both parts draft; sources that fit the rounds."""
    prompts = [(1, 2, 3, 1, 2, 3, 1, 2), (2, 7, 5), (4, 4, 4, 4), (9, 8, 7, 9, 8, 7, 9)]
    sampling = [SamplingParams(), SamplingParams(temperature=1.0, rule="match", seed=3)] * 2
    requests = [Request(ids, 30, sampling=params) for ids, params in zip(prompts, sampling, strict=True)]
    found = decode(target, Hybrid(model), requests, max_batch=3)
    assert outcome(found) == outcome(plain(target, requests))
    for round in (r for answer in found for r in answer.rounds):
        assert (round.source in ("suffix", model.name)) if round.proposed else round.source == ""
        assert round.proposed <= model.max_drafts or round.source == "suffix"
    assert {r.source for answer in found for r in answer.rounds} >= {"suffix", model.name} - {"none", "ngram"}


def test_the_argument_names_the_model(tmp_path: Path) -> None:
    toy = ToyTarget()
    save_drafter(tiny("dlite", toy), tmp_path / "d", toy.info)
    drafter = load_drafter(f"hybrid:{tmp_path / 'd'}", toy)
    assert (drafter.model.name, drafter.taps, drafter.max_drafts) == ("dlite", drafter.model.taps, 32)
    with pytest.raises(DliteError, match="no drafter ships with dlite for 'toy'"):
        load_drafter("hybrid", toy)


def test_the_state_is_that_of_both() -> None:
    assert Hybrid(Nines()).state_bytes(100) == 1000 + Suffix().state_bytes(100)
