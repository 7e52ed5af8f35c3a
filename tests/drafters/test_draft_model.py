"""A small model as a drafter: its cache keeps step with the target's, and nothing is run twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.drafters import load_drafter
from dlite.drafters.draft_model import DraftModel, ModelMemory
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.errors import DliteError
from dlite.sampling import SamplingParams
from dlite.target.base import Target
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.types import Generation, Proposal, View
from tests.data.support import TOOLS, make_tokenizer
from tests.drafters.support import draft_model
from tests.support import decode, outcome, plain, tiny_model

HF = HFTarget(tiny_model("llama", context=200, num_hidden_layers=6), None, "tiny")
PROMPTS = [(3, 1, 4, 1, 5), (2,), (9, 2, 6, 5, 3, 5, 8, 9, 7)]
REQUESTS = [Request(ids, 24) for ids in PROMPTS]


class Counted:
    """A target that notes how many positions each pass computes."""

    def __init__(self, inner: Target) -> None:
        self.inner, self.info, self.dtype, self.device = inner, inner.info, inner.dtype, inner.device
        self.passes: list[tuple[int, int]] = []

    def new_cache(self, rows: int, length: int) -> Any:
        """As the inner target."""
        return self.inner.new_cache(rows, length)

    def forward(self, tokens: Tensor, *rest: Any) -> Any:
        """As the inner target."""
        self.passes.append((len(tokens), tokens.shape[1]))
        return self.inner.forward(tokens, *rest)


class Greedy:
    """Takes the argmax."""

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The best token's id."""
        return logits.argmax(-1) if ids is None else ids[logits.argmax(-1)]

    def select(self, index: Sequence[int]) -> Greedy:
        """The same."""
        return self


def all_kept(results: Sequence[Generation]) -> bool:
    return all(r.accepted == r.proposed for g in results for r in g.rounds[:-1])


@pytest.mark.parametrize("target", [HF, ToyTarget(stop=False)], ids=["hf", "toy"])
def test_the_target_itself_as_drafter_gets_every_draft_accepted(target: Target) -> None:
    """Were its cache a position or a token off, it would not."""
    found = decode(target, DraftModel(target, target.info, 5), REQUESTS, max_batch=2)
    assert outcome(found) == outcome(plain(target, REQUESTS))
    assert all_kept(found)
    assert found[0].rounds[0].proposed == 5


def test_so_it_does_when_sampled_with_its_own_q() -> None:
    """p = q, so that every coin keeps."""
    requests = [
        Request(ids, 20, sampling=SamplingParams(temperature=0.8, top_p=0.9, seed=s)) for s, ids in enumerate(PROMPTS)
    ]
    assert all_kept(decode(HF, DraftModel(HF, HF.info, 5), requests, max_batch=3))


def test_so_it_does_behind_a_restored_prefix_and_after_a_preemption() -> None:
    engine = Engine(HF, DraftModel(HF, HF.info, 5), max_batch=2, prefix=PrefixCache(4))
    number = engine.submit(REQUESTS[0])
    engine.run()
    ids = (*REQUESTS[0].ids, *engine.result(number).token_ids, 7, 8)
    numbers = [engine.submit(Request(ids, 24)), engine.submit(REQUESTS[2])]
    for _ in range(2):
        engine.step()
    engine.preempt(numbers[0])
    engine.run()
    assert engine.prefix is not None
    assert engine.prefix.restored_tokens > 0
    assert all_kept([engine.result(n) for n in numbers])


def test_what_the_drafts_left_in_the_cache_is_not_computed_again() -> None:
    """K passes of one token a round, and one more where all K were kept: the last draft was not run."""
    model = Counted(draft_model(HF, 4).model)
    found = decode(HF, DraftModel(model, HF.info, 4), [Request(PROMPTS[0], 40)])[0]
    prefill, *passes = model.passes
    assert prefill == (1, len(PROMPTS[0]))
    expected = []
    for r in found.rounds:
        expected += [(1, 1)] * r.proposed
        if r.accepted == r.proposed:
            expected.append((1, 1))
    assert passes == expected
    kept = {r.accepted == r.proposed for r in found.rounds}
    assert kept == {True, False}


def filled(drafter: DraftModel, rows: Sequence[Sequence[int]]) -> ModelMemory:
    memory = drafter.new_memory(len(rows))
    for row, tokens in enumerate(rows):
        memory.observe(row, torch.tensor([tokens]), torch.zeros(1, len(tokens), 0, 0), [len(tokens)])
    return memory


def propose(drafter: DraftModel, memory: ModelMemory, rows: Sequence[int], anchors: Sequence[int]) -> list[list[int]]:
    anchor = torch.tensor(anchors)
    view = View(anchor, anchor, torch.zeros(len(rows), 0, 0), [[a] for a in anchors], memory, rows)
    proposal: Proposal = drafter.propose(view, [3] * len(rows), Greedy())
    return proposal.tokens.tolist()


def test_drafts_are_cut_back_and_some_rows_can_draft_alone() -> None:
    """A composed drafter asks for some of the rows, even twice a round."""
    drafter = draft_model(HF, 4)
    memory = filled(drafter, PROMPTS)
    before = [memory.bytes(row) for row in range(3)]
    together = propose(drafter, memory, [0, 1, 2], [5, 6, 7])
    assert propose(drafter, memory, [0, 2], [5, 7]) == [together[0], together[2]]
    assert propose(drafter, memory, [1], [6]) == [together[1]]
    assert [memory.bytes(row) for row in range(3)] == before
    taken = torch.tensor([[a, *drafts] for a, drafts in zip([5, 6, 7], together, strict=True)])
    memory.observe(0, taken, torch.zeros(3, 4, 0, 0), [1, 3, 4])
    fresh = filled(drafter, [(*p, *t[:n]) for p, t, n in zip(PROMPTS, taken.tolist(), [1, 3, 4], strict=True)])
    assert propose(drafter, memory, [0, 1, 2], [8, 9, 10]) == propose(drafter, fresh, [0, 1, 2], [8, 9, 10])


def test_state_bytes_are_what_the_cache_holds() -> None:
    drafter = draft_model(HF, 4)
    memory = filled(drafter, PROMPTS)
    for row, ids in enumerate(PROMPTS):
        stored = [x[row, :, : len(ids)] for layer in memory.cache.layers for x in layer]
        assert (
            sum(x.numel() * x.element_size() for x in stored) == memory.bytes(row) == drafter.state_bytes(len(ids) + 1)
        )


@pytest.mark.parametrize("rows", [9, 15])
def test_output_matrices_may_be_padded_to_other_sizes(rows: int) -> None:
    target = ToyTarget(12, stop=False)
    model = ToyTarget(rows, stop=False)
    model.info = replace(model.info, tokenizer_hash=target.info.tokenizer_hash)
    drafter = DraftModel(model, target.info, 3)
    requests = [replace(r, sampling=SamplingParams(temperature=t)) for r in REQUESTS for t in (0.0, 1.0)]
    found = decode(target, drafter, requests, max_batch=4)
    assert outcome(found[::2]) == outcome(plain(target, requests[::2]))
    assert all(t < 12 for g in found for t in g.token_ids)


def test_it_is_made_by_name(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(TOOLS)
    model = tiny_model("qwen3", vocab_size=len(tokenizer), eos_token_id=0, bos_token_id=None)
    model.save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    target = HFTarget(model, tokenizer, "large")
    drafter = load_drafter(f"draft_model:{tmp_path / 'small'}", target)
    assert (drafter.name, drafter.max_drafts, drafter.taps) == ("draft_model", 7, ())
    assert all_kept(decode(target, drafter, REQUESTS[:1]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("draft_model", "draft_model does not say which model. Expected draft_model:NAME"),
        ("draft_model:", "draft_model does not say which model"),
        ("draft_model:/no/where", "no usable target at '/no/where'"),
        ("none:3", "the drafter 'none' takes nothing behind its name, but got '3'"),
        ("medusa:x", "a medusa has weights. Expected its folder"),
        ("draft_modle:x", "there is no drafter 'draft_modle'.* Did you mean 'draft_model'?"),
    ],
)
def test_what_cannot_be_made_is_explained(name: str, words: str) -> None:
    with pytest.raises(DliteError, match=words):
        load_drafter(name, HF)


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(DliteError, match="toy has another tokenizer than toy. Expected the same tokens"):
        DraftModel(ToyTarget(9), ToyTarget(12).info)
    other = HFTarget(tiny_model("llama", vocab_size=41), None, "other")
    with pytest.raises(DliteError, match="other has a vocabulary of 41; tiny has 37 and no tokenizer to compare"):
        DraftModel(other, HF.info)
