"""Losslessness: whatever drafts, the output is that of plain decoding, token for token, for every rule and stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlite.drafters.base import Chooser, Drafter
from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Event, Request
from dlite.engine.stats import tau
from dlite.sampling import SamplingParams
from dlite.target.base import Target
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.types import Generation, Proposal, View
from tests.support import (
    TINY_VOCAB,
    Oracle,
    Recorder,
    check_stream,
    decode,
    greedy_params,
    outcome,
    plain,
    request_lists,
    shapes,
    tiny_drafter,
    truths_of,
)

VARIANTS: list[dict[str, Any]] = [
    {}, {"anchor_group": 2}, {"placeholder": "token"}, {"last_tap": "normed"}, {"draft_vocab": (1, 3, 4, 7, 9)},
]  # fmt: skip
DRAFTERS = st.sampled_from(["dlite", "oracle"])


def drafter_for(
    kind: str, target: Target, requests: list[Request], expected: list[Generation], **knobs: Any
) -> Drafter:
    """A random DLite, or an oracle that is wrong at some positions."""
    if kind == "dlite":
        return tiny_drafter(target, K=knobs["K"], seed=knobs["seed"], **knobs["variant"])
    truths = truths_of(requests, expected)
    return Oracle(truths, target.info.vocab_size, knobs["K"], wrong=knobs["wrong"], seed=knobs["seed"])


def knobs() -> st.SearchStrategy[dict[str, Any]]:
    """How the drafter is made."""
    return st.fixed_dictionaries({
        "K": st.integers(1, 8),
        "wrong": st.sampled_from([0.0, 0.2, 0.5, 1.0]),
        "seed": st.integers(0, 99),
        "variant": st.sampled_from(VARIANTS),
    })  # fmt: skip


def toys() -> st.SearchStrategy[ToyTarget]:
    """Random toy targets, some with a context that ends inside the output."""
    return st.builds(
        ToyTarget,
        seed=st.integers(0, 99),
        sharpness=st.sampled_from([1.0, 5.0]),
        context_length=st.integers(15, 40),
        stop=st.booleans(),
    )


# --- greedy ---


@settings(max_examples=60)
@given(st.data())
def test_toy_greedy_output_is_plain_decoding(data: st.DataObject) -> None:
    """Stop ids, stop strings, limits and the end of the context all fall anywhere in a block."""
    target, made = data.draw(toys()), data.draw(knobs())
    requests = data.draw(request_lists(12, 15, made["K"], greedy_params(12), text=True))
    expected = plain(target, requests)
    drafter = drafter_for(data.draw(DRAFTERS), target, requests, expected, **made)
    found = decode(target, drafter, requests, max_batch=data.draw(st.integers(1, 5)), prefill_chunk=4)
    assert outcome(found) == outcome(expected)


@settings(max_examples=8)
@given(st.data())
def test_hf_greedy_output_is_plain_decoding(hf_target: HFTarget, data: st.DataObject) -> None:
    """Every family; Gemma's sliding window is shorter than the sequences."""
    made = data.draw(knobs())
    requests = data.draw(request_lists(TINY_VOCAB, 24, made["K"], greedy_params(TINY_VOCAB), text=False))
    expected = plain(hf_target, requests)
    drafter = drafter_for(data.draw(DRAFTERS), hf_target, requests, expected, **made)
    found = decode(hf_target, drafter, requests, max_batch=data.draw(st.integers(2, 5)), prefill_chunk=5)
    assert outcome(found) == outcome(expected)


def test_hf_output_is_the_models_own_argmax(hf_target: HFTarget) -> None:
    """Plain decoding itself, against whole passes without any cache."""
    prompt = (5, 9, 1, 30)
    (found,) = decode(hf_target, NoDrafter(), [Request(prompt, 16, stop_ids=frozenset())])
    ids = list(prompt)
    for token in found.token_ids:
        whole = hf_target.forward(torch.tensor([ids]), hf_target.new_cache(1, len(ids)), 0, (), "last")
        assert token == int(whole.logits[0, -1].argmax())
        ids.append(token)
    assert len(found.token_ids) == 16


# --- what each round does ---


def check_rounds(request: Request, result: Generation, K: int) -> None:
    """The rounds account for every token but the prefill's, within K and in order."""
    assert sum(r.committed for r in result.rounds) == len(result.token_ids) - 1
    at = len(request.ids) + 1
    for r in result.rounds:
        assert r.context == at
        assert 0 <= r.accepted <= r.proposed <= min(K, request.K or K)
        assert 1 <= r.committed <= r.accepted + 1
        at += r.committed
    assert all(r.committed == r.accepted + 1 for r in result.rounds[:-1]), "only the last round may be cut"


@settings(max_examples=30)
@given(st.data())
def test_a_batch_gives_each_row_what_it_gets_alone(data: st.DataObject) -> None:
    """Ids and rounds: no row is held to its neighbours' acceptance or draft count."""
    target, made = data.draw(toys()), data.draw(knobs())
    sampling = st.one_of(greedy_params(12), sampled_params())
    requests = data.draw(request_lists(12, 15, made["K"], sampling, text=True))
    drafter = drafter_for(data.draw(DRAFTERS), target, requests, plain(target, requests), **made)
    together = decode(target, drafter, requests, max_batch=data.draw(st.integers(2, 5)))
    alone = [decode(target, drafter, [request])[0] for request in requests]
    assert outcome(together) == outcome(alone)
    assert [shapes(r) for r in together] == [shapes(r) for r in alone]
    for request, result in zip(requests, together, strict=True):
        check_rounds(request, result, made["K"])


def test_hf_batch_gives_each_row_what_it_gets_alone(hf_target: HFTarget) -> None:
    drafter = tiny_drafter(hf_target, K=5)
    requests = [
        Request(tuple(range(2, 2 + length)), 20, K=K, sampling=sampling, stop_ids=frozenset())
        for length, K, sampling in (
            (3, 2, SamplingParams()), (11, 5, SamplingParams(temperature=3.0, seed=4)), (1, 4, SamplingParams()),
        )
    ]  # fmt: skip
    together = decode(hf_target, drafter, requests)
    alone = [decode(hf_target, drafter, [request])[0] for request in requests]
    assert outcome(together) == outcome(alone)
    assert [shapes(r) for r in together] == [shapes(r) for r in alone]


@pytest.mark.parametrize("K", [1, 4, 8])
def test_a_perfect_drafter_commits_whole_blocks(K: int) -> None:
    target = ToyTarget(sharpness=5.0, stop=False)
    requests = [Request((1, 2, 3), 1 + 3 * (K + 1)), Request((4,), 1 + 2 * (K + 1))]
    drafter = Oracle(truths_of(requests, plain(target, requests)), 12, K, wrong=0.0, seed=0)
    found = decode(target, drafter, requests)
    assert [len(r.rounds) for r in found] == [3, 2]
    assert tau(r for result in found for r in result.rounds) == K + 1


def test_the_prefills_own_token_can_be_the_last() -> None:
    target = ToyTarget()
    (first,) = decode(target, tiny_drafter(target), [Request((1, 2, 3), 1)])
    assert (len(first.token_ids), first.finish, first.rounds) == (1, "length", ())
    again = Request((1, 2, 3), 9, stop_ids=frozenset(first.token_ids))
    (stopped,) = decode(target, tiny_drafter(target), [again])
    assert (stopped.token_ids, stopped.finish) == (first.token_ids, "stop")


def test_a_generated_mask_token_is_kept() -> None:
    """The placeholder's id is an ordinary token when the target says it; it was once swallowed elsewhere."""
    target = ToyTarget(stop=False)
    bias = SamplingParams(logit_bias={11: 100.0})
    drafter = tiny_drafter(target, placeholder="token")
    assert drafter.config.mask_token_id == 11
    (found,) = decode(target, drafter, [Request((1,), 10, sampling=bias)])
    assert found.token_ids == (11,) * 10


# --- sampled ---


@st.composite
def sampled_params(draw: st.DrawFn) -> SamplingParams:
    """Sampled settings of every rule."""
    return SamplingParams(
        temperature=draw(st.sampled_from([0.5, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 3])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.2])),
        rule=draw(st.sampled_from(["rejection", "block", "match"])),
        seed=draw(st.integers(0, 2**64)),
    )


@settings(max_examples=15)
@given(st.data())
def test_a_seed_repeats_and_match_repeats_plain_sampling(data: st.DataObject) -> None:
    target, made = data.draw(toys()), data.draw(knobs())
    requests = data.draw(request_lists(12, 15, made["K"], sampled_params(), text=True))
    expected = plain(target, requests)
    drafter = drafter_for(data.draw(DRAFTERS), target, requests, expected, **made)
    found, again = decode(target, drafter, requests), decode(target, drafter, requests)
    assert outcome(found) == outcome(again)
    matched = [b for b, request in enumerate(requests) if request.sampling.rule == "match"]
    assert outcome([found[b] for b in matched]) == outcome([expected[b] for b in matched])


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_seeds_matter_and_drafts_are_accepted(rule: Any) -> None:
    """Sampling is not secretly greedy, and verification not secretly refusing everything."""
    target = ToyTarget(stop=False)
    requests = [
        Request((1, 2), 40, sampling=SamplingParams(temperature=1.0, rule=rule, seed=seed)) for seed in range(4)
    ]
    drafter = Oracle(truths_of(requests, plain(target, requests)), 12, 4, wrong=0.3, seed=0)
    found = decode(target, drafter, requests)
    assert len({r.token_ids for r in found}) == 4
    assert 1.2 < tau(r for result in found for r in result.rounds) < 5


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_sampled_output_has_the_targets_frequencies(rule: Any) -> None:
    """Through the whole engine, coins included: 400 seeds against the exact law of the first three tokens."""
    target = ToyTarget(3, stop=False, sharpness=1.0)
    requests = [
        Request((1, 2), 3, sampling=SamplingParams(temperature=1.0, rule=rule, seed=seed)) for seed in range(400)
    ]
    drafter = Oracle([(1, 2, 0, 2, 1)], 3, 2, wrong=0.3, seed=0)
    counts = torch.zeros(3, 3, 3)
    for result in decode(target, drafter, requests, max_batch=200):
        counts[result.token_ids] += 1
    law = torch.zeros(3, 3, 3)
    for a in range(3):
        for b in range(3):
            ids = torch.tensor([[1, 2, a, b]])
            p = target.forward(ids, target.new_cache(1, 4), 0, (), "all").logits.softmax(-1)[0]
            law[a, b] = p[1, a] * p[2, b] * p[3]
    chi_square = ((counts - 400 * law) ** 2 / (400 * law)).sum()
    assert chi_square < 60  # 26 degrees of freedom: one chance in 6,000


# --- cancel, preempt, restore ---


def test_a_cancelled_request_keeps_its_tokens_and_spares_the_others() -> None:
    target = ToyTarget(sharpness=5.0, stop=False)
    requests = [Request((b + 1, b + 2), 40) for b in range(4)]
    engine = Engine(target, tiny_drafter(target, K=3), max_batch=3)
    streams: list[list[Event]] = [[] for _ in requests]
    numbers = [engine.submit(request, stream.append) for request, stream in zip(requests, streams, strict=True)]
    engine.step()
    engine.step()
    engine.cancel(numbers[0])  # running
    engine.cancel(numbers[3])  # still waiting
    engine.run()
    found, expected = [engine.result(number) for number in numbers], plain(target, requests)
    assert [r.finish for r in found] == ["cancelled", "length", "length", "cancelled"]
    assert outcome(found[1:3]) == outcome(expected[1:3])
    kept = found[0].token_ids
    assert 2 < len(kept) < 40
    assert kept == expected[0].token_ids[: len(kept)]
    assert found[3].token_ids == ()
    for result, events in zip(found, streams, strict=True):
        check_stream(events, result)


def preempted(target: Target, drafter: Drafter, requests: list[Request], after: list[int]) -> list[Generation]:
    """Request b is thrown out after step ``after[b]``."""
    engine = Engine(target, drafter, max_batch=3)
    numbers = [engine.submit(request) for request in requests]
    step = 0
    while engine.busy:
        engine.step()
        step += 1
        for number, at in zip(numbers, after, strict=True):
            if at == step:
                engine.preempt(number)
    return [engine.result(number) for number in numbers]


@settings(max_examples=30)
@given(st.data())
def test_a_resumed_request_gives_the_same_output_and_drafts(data: st.DataObject) -> None:
    """History-free: what a drafter needs comes back with the pivot, whatever was dropped."""
    target, K = data.draw(toys()), data.draw(st.integers(1, 6))
    sampling = st.one_of(greedy_params(12), sampled_params())
    requests = data.draw(request_lists(12, 15, K, sampling, text=True))
    requests = [replace(r, ids=(*r.ids[:10], 1, b)) for b, r in enumerate(requests)]  # so that drafts have one owner
    after = [data.draw(st.integers(1, 8)) for _ in requests]
    calm, shaken = (Recorder(tiny_drafter(target, K=K)) for _ in range(2))
    expected = decode(target, calm, requests)
    found = preempted(target, shaken, requests, after)
    assert outcome(found) == outcome(expected)
    assert [shapes(r) for r in found] == [shapes(r) for r in expected]
    assert shaken.drafts == calm.drafts


def test_hf_resumed_requests_give_the_same_output_and_drafts(hf_target: HFTarget) -> None:
    requests = [Request((3, 5, 7, *range(b, b + 6)), 18, stop_ids=frozenset()) for b in range(4)]
    calm, shaken = (Recorder(tiny_drafter(hf_target, K=4)) for _ in range(2))
    expected = decode(hf_target, calm, requests, max_batch=3)
    found = preempted(hf_target, shaken, requests, [2, 3, 3, 7])
    assert outcome(found) == outcome(expected)
    assert shaken.drafts == calm.drafts


@pytest.mark.parametrize("tail", [(), (9, 4), (9, 4, 1, 1, 8)])
def test_hf_restored_prefix_gives_the_same_output_and_drafts(hf_target: HFTarget, tail: tuple[int, ...]) -> None:
    """The next turn of a conversation: what the last one computed is restored, the rest prefilled."""
    first = Request((3, 5, 7, 8, 2, 6, 4, 9), 10, stop_ids=frozenset())
    prefix = PrefixCache()
    (answer,) = decode(hf_target, tiny_drafter(hf_target, K=4), [first], prefix=prefix)
    turn = Request((*first.ids, *answer.token_ids, *tail), 12, stop_ids=frozenset())
    cold, warm = (Recorder(tiny_drafter(hf_target, K=4)) for _ in range(2))
    expected = decode(hf_target, cold, [turn, Request((1, 2), 5)])
    found = decode(hf_target, warm, [turn, Request((1, 2), 5)], prefix=prefix)
    assert prefix.restored_tokens == len(first.ids) + 9, "all but the answer's last token had been computed"
    assert outcome(found) == outcome(expected)
    assert warm.drafts == cold.drafts


def test_one_engine_serves_turn_after_turn_from_its_prefixes(hf_target: HFTarget) -> None:
    prefix = PrefixCache()
    engine = Engine(hf_target, tiny_drafter(hf_target, K=3), max_batch=2, prefix=prefix)
    ids: tuple[int, ...] = (5, 6, 7)
    for turn in range(3):
        request = Request(ids, 6, stop_ids=frozenset())
        number, other = engine.submit(request), engine.submit(Request((turn + 1, 2), 9, stop_ids=frozenset()))
        engine.run()
        result = engine.result(number)
        assert outcome([result]) == outcome(plain(hf_target, [request]))
        assert len(engine.result(other).token_ids) == 9
        ids = (*ids, *result.token_ids, turn)
    assert prefix.restored_tokens >= 8 + 15


# --- streaming ---


def test_a_stop_string_across_rounds_is_never_streamed() -> None:
    """'ab' arrived as 'a' in one event and was then cut from the text: a reader had seen what the result denies."""
    target = ToyTarget(stop=False)
    letters = plain(target, [Request((1,), 6)])[0].text
    for length in (2, 3, 5):
        stop = letters[6 - length :]
        (found,) = decode(target, NoDrafter(), [Request((1,), 20, stop_strings=(stop,))])  # checks the stream
        assert found.finish == "stop"
        assert stop not in found.text
        assert found.text == letters[: letters.find(stop)]


class Moody:
    """Drafts chosen for certain, fewer than wanted: none at all in every third place of the text."""

    name, taps, max_drafts = "moody", (), 5

    def new_memory(self, rows: int) -> None:
        """Nothing to remember."""

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """Copies of the last tokens."""
        sizes = [min(count, len(tokens) % 3) for tokens, count in zip(view.tokens, counts, strict=True)]
        drafts = [tokens[: max(sizes)] + [0] * (max(sizes) - len(tokens)) for tokens in view.tokens]
        tokens = torch.tensor(drafts, dtype=torch.long).view(len(sizes), -1)
        return Proposal(tokens, torch.tensor(sizes), source=["x"] * len(sizes))

    def state_bytes(self, context: int) -> int:
        """Nothing is kept."""
        return 0


@pytest.mark.parametrize("rule", ["rejection", "block", "match"])
def test_rows_without_drafts_beside_rows_with_some(rule: Any) -> None:
    """0 drafts in a row, 0 in all rows, fewer than wanted: greedy and sampled, with a penalty and without."""
    toy = ToyTarget(sharpness=3.0, stop=False)
    sampled = SamplingParams(temperature=0.8, rule=rule, seed=5, repetition_penalty=1.2)
    requests = [
        Request(ids, 20, sampling=sampling)
        for ids in [(3, 1, 4), (1, 5), (9,)]
        for sampling in (SamplingParams(), sampled, SamplingParams(repetition_penalty=1.3))
    ]
    found = decode(toy, Moody(), requests, max_batch=9)
    alone = [decode(toy, Moody(), [request])[0] for request in requests]
    assert outcome(found) == outcome(alone)
    assert {r.proposed for answer in found for r in answer.rounds} == {0, 1, 2}
    assert {r.source for answer in found for r in answer.rounds if r.proposed} == {"x"}
    exact = [i for i, q in enumerate(requests) if q.sampling.greedy or rule == "match"]
    expected = plain(toy, [requests[i] for i in exact])
    assert outcome([found[i] for i in exact]) == outcome(expected)
