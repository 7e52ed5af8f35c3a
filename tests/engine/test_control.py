"""The scheduler: exact in law, as long as pays, off where nothing pays, and visible."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.drafters.hybrid import Hybrid
from dlite.drafters.suffix import Suffix
from dlite.engine.control import EXPLORE, PATIENCE, PAUSE, PROBES, Control, Pace, depth
from dlite.engine.costs import Costs
from dlite.engine.decode import Engine
from dlite.engine.request import Active, Request
from dlite.sampling import SamplingParams
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.types import Proposal, Round, Seconds, View
from dlite.verify.block import block
from dlite.verify.rejection import rejection
from tests.drafters.support import TRAINED, WEIGHTLESS, label, ready
from tests.support import (
    Chain,
    Oracle,
    cdf,
    chain_law,
    chains,
    decode,
    enumerate_law,
    outcome,
    plain,
    tiny_model,
    truths_of,
)
from tests.verify import test_block, test_rejection

TOY = ToyTarget(sharpness=4.0, stop=False)
PROMPTS = [(3, 1, 4, 1, 5, 9, 2, 6), (2, 7), (1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 1, 8, 2, 8), (5,)]


# --- the law of the output ---


def cut(path: Sequence[int], stated: Chain, *, peek: bool) -> int:
    """How many drafts of a path are verified, by tables of confidence [V] * i: row i - 1 knows i - 1 drafts.

    With ``peek`` it knows draft i as well: the mistake that must show.
    """
    K = len(path)
    known = [float(stated[i + peek][tuple(path[: i + peek])]) for i in range(K)]
    survival = list(itertools.accumulate(known, lambda a, c: a * c))
    return depth([survival], lambda i: 1 + 0.1 * i)


def scheduled(rule: Any, stated: Chain, *, peek: bool = False) -> Any:
    """A rule behind the scheduler's cut."""

    def run(p: Tensor, draft: Proposal, u: Tensor) -> Any:
        n = cut(draft.tokens[0].tolist(), stated, peek=peek)
        probs = None if draft.probs is None else draft.probs[:, :n]
        coins = torch.cat([u[:, :n], u[:, -1:]], 1)
        return rule(p[:, : n + 1], Proposal(draft.tokens[:, :n], draft.num_tokens.clamp(max=n), probs), coins)

    return run


def cut_breaks(breaks: Any, stated: Chain, *, peek: bool = False) -> Any:
    """Where the coins of such a rule change their outcome."""

    def found(p: list[list[float]], q: list[list[float]], path: Sequence[int]) -> list[list[float]]:
        n = cut(path, stated, peek=peek)
        own = breaks(p[: n + 1], q[:n], path[:n]) if n else [cdf(p[0])]
        return [*own[:-1], *[[]] * (len(path) - n), own[-1]]

    return found


def confidences(V: int, K: int, seed: int = 3) -> Chain:
    """Chances for every prefix of up to K drafts, half of them too small for one more row."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.where(torch.rand([V] * i, generator=generator) < 0.4, 0.05, 0.9) for i in range(K + 1)]


@pytest.mark.parametrize("kind", ["dense", "q misses", "both miss", "certain"])
@pytest.mark.parametrize(("V", "K"), [(5, 2), (3, 3)])
@pytest.mark.parametrize("rule", [rejection, block], ids=lambda rule: rule.__name__)
def test_output_follows_the_target_exactly(rule: Any, V: int, K: int, kind: str) -> None:
    p, q = chains(kind, V, K)
    breaks = (test_rejection if rule is rejection else test_block).breaks
    for seed in (0, 1, 3):
        stated = confidences(V, K, seed)
        law, _ = enumerate_law(scheduled(rule, stated), cut_breaks(breaks, stated), p, q, certain=kind == "certain")
        torch.testing.assert_close(law, chain_law(p), rtol=0, atol=1e-9)


def test_the_cut_varies_and_a_look_at_the_draft_itself_would_show() -> None:
    V, K = 5, 2
    p, q = chains("dense", V, K)
    stated = [torch.tensor(0.9, dtype=torch.float64), *confidences(V, K)[1:]]
    paths = list(itertools.product(range(V), repeat=K))
    assert {cut(path, stated, peek=False) for path in paths} == {1, 2}
    assert {cut(path, stated, peek=True) for path in paths} == {0, 1, 2}
    breaks = cut_breaks(test_rejection.breaks, stated, peek=True)
    law, _ = enumerate_law(scheduled(rejection, stated, peek=True), breaks, p, q)
    assert (law - chain_law(p)).abs().max() > 1e-3


def test_what_is_behind_the_first_fall_is_never_looked_at() -> None:
    seconds = [1.0, 1.1, 1.2, 1.3]
    assert depth([[0.9, 0.05, 0.9]], lambda i: seconds[i]) == 1
    assert depth([[0.9, 0.05, float("nan")]], lambda i: seconds[i]) == 1
    assert depth([[0.9, 0.8, 0.7]], lambda i: seconds[i]) == 3
    assert depth([[]], lambda i: seconds[i]) == depth([], lambda i: 1.0) == 0
    assert depth([[0.05, 0.05]], lambda i: seconds[i]) == 0


def test_requests_in_one_pass_share_its_rows() -> None:
    """A draft that alone does not pay is free beside one that does."""
    seconds = [1.0, 1.3, 1.6]
    assert depth([[0.1]], lambda i: seconds[i]) == 0
    assert depth([[0.1], [0.9, 0.4]], lambda i: seconds[i]) == 1
    assert depth([[0.1, 0.1], [0.9, 0.8]], lambda i: seconds[i]) == 2


# --- every drafter under it ---


class Cutting(Control):
    """Cuts and rests at whim, a different number each round, as if costs and clocks had said so."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def plan(self, rows: Any, wanted: Any, drafter: Any) -> Any:
        self.turn += 1
        for row in rows:
            row.pace = row.pace or Pace()
            row.pace.off = int((self.turn + row.id) % 5 == 0)
        return super().plan(rows, wanted, drafter)

    def _depth(self, rows: Any, survival: Any, draft: Any) -> int:
        return min(max(map(len, survival)), self.turn % 4)


@pytest.fixture(scope="module")
def hf() -> HFTarget:
    return HFTarget(tiny_model("llama", context=200, num_hidden_layers=6), None, "tiny")


@pytest.mark.parametrize("case", [*TRAINED, *WEIGHTLESS], ids=label)
def test_the_text_is_plain_decodings_whatever_is_cut(case: Any, hf: HFTarget) -> None:
    sampling = [SamplingParams(), SamplingParams(temperature=1.0, rule="match", seed=3)] * 2
    requests = [Request(ids, 30, sampling=s) for ids, s in zip(PROMPTS, sampling, strict=True)]
    for target in (TOY, hf):
        found = decode(target, ready(case, target), requests, max_batch=3, control=Cutting())
        assert outcome(found) == outcome(plain(target, requests))
        rounds = [r for one in found for r in one.rounds]
        assert all(r.proposed == 0 for r in rounds if r.off)
        assert len({r.proposed for r in rounds}) > 1


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("case", [("dlite", {"options": {"confidence": True}}), ("dflash", {})], ids=label)
def test_sampled_output_has_the_targets_frequencies(case: Any, rule: Any) -> None:
    """As the contract's test, with a clock that makes the second draft a matter of confidence."""
    target = ToyTarget(vocab_size=4, sharpness=1.0, stop=False)
    requests = [Request((1, 2), 2, sampling=SamplingParams(temperature=1.0, rule=rule, seed=s)) for s in range(400)]
    engine = Engine(target, ready(case, target, K=2), max_batch=1, control=Control(Costs(slope=0.5)))
    numbers = [engine.submit(request) for request in requests]
    engine.run()
    counts = torch.zeros(4, 4)
    for number in numbers:
        counts[engine.result(number).token_ids] += 1
    law = torch.zeros(4, 4)
    for a in range(4):
        p = target.forward(torch.tensor([[1, 2, a]]), target.new_cache(1, 3), 0, (), "all").logits.softmax(-1)[0]
        law[a] = p[1, a] * p[2]
    assert ((counts - 400 * law) ** 2 / (400 * law)).sum() < 45


# --- what it decides ---


class Clock:
    """Time as a test wants it: a draft and a row of a pass take so long, nothing else takes any."""

    def __init__(self, draft: float, row: float) -> None:
        self.draft, self.row, self.now = draft, row, 0.0

    def __call__(self) -> float:
        return self.now

    def target(self, inner: ToyTarget) -> Any:
        """The target, its passes on the clock."""
        clock, forward = self, inner.forward

        def timed(tokens: Tensor, *rest: Any) -> Any:
            clock.now += 1.0 + clock.row * (tokens.shape[1] - 1)
            return forward(tokens, *rest)

        inner.forward = timed  # type: ignore[method-assign]
        return inner

    def drafter(self, inner: Any) -> Any:
        """The drafter, its drafts on the clock."""
        clock, propose = self, inner.propose

        def timed(view: View, *rest: Any) -> Proposal:
            clock.now += clock.draft
            return propose(view, *rest)  # type: ignore[no-any-return]

        inner.propose = timed
        return inner


def run(clock: Clock, wrong: float, *, tokens: int = 300, adaptive: bool = True, K: int = 6) -> Any:
    """One request with an oracle that is wrong so often: its generation and the seconds it took."""
    request = Request((3, 1, 4), tokens)
    truth = truths_of([request], plain(ToyTarget(sharpness=4.0, stop=False), [request]))
    target = clock.target(ToyTarget(sharpness=4.0, stop=False))
    drafter = clock.drafter(Oracle(truth, 12, K, wrong=wrong, seed=1))
    control = Control() if adaptive else None
    result = decode(target, drafter, [request], control=control, clock=clock)[0]
    assert result.token_ids == truth[0][3:]
    return result


def test_good_drafts_are_all_verified() -> None:
    result = run(Clock(0.1, 0.02), wrong=0.0)
    assert sum(r.proposed for r in result.rounds[5:-2]) == 6 * len(result.rounds[5:-2])
    assert result.to_json()["rounds_off"] == 0


@pytest.mark.parametrize(("wrong", "row"), [(0.2, 0.02), (0.2, 0.3), (0.5, 0.1), (0.5, 0.3)])
def test_it_is_about_as_fast_as_the_best_fixed_length(wrong: float, row: float) -> None:
    fixed = [run(Clock(0.05, row), wrong, adaptive=False, K=K).seconds.decode for K in range(1, 7)]
    assert run(Clock(0.05, row), wrong).seconds.decode < 1.12 * min(fixed)


def test_useless_drafts_are_switched_off_and_tried_again() -> None:
    result = run(Clock(0.5, 0.2), wrong=1.0)
    off = [r.off for r in result.rounds]
    first = off.index(True)
    assert first == PATIENCE
    assert off[first : first + PAUSE] == [True] * PAUSE
    assert off[first + PAUSE : first + PAUSE + PROBES] == [False] * PROBES
    assert off[first + PAUSE + PROBES] is True
    assert all(r.proposed == 0 and r.seconds_draft == 0 for r in result.rounds if r.off)
    assert result.to_json()["rounds_off"] == sum(off) > 0.85 * len(off)


def test_it_comes_back_when_drafting_pays_again() -> None:
    """The second half of the text is easy."""
    request = Request((3, 1, 4), 400)
    truth = truths_of([request], plain(TOY, [request]))
    clock = Clock(0.3, 0.1)
    drafter = Oracle(truth, 12, 4, wrong=0.0, seed=1)
    drafter.spoiled = [at < 150 for at in range(1024)]
    result = decode(clock.target(ToyTarget(sharpness=4.0, stop=False)), clock.drafter(drafter), [request],
                    control=Control(), clock=clock)[0]  # fmt: skip
    early = [r for r in result.rounds if r.context < 150]
    late = [r for r in result.rounds if r.context > 280]
    assert sum(r.off for r in early) > len(early) / 2
    assert sum(r.off for r in late) == 0
    assert len(late) < 40


def test_a_hybrid_whose_model_rests_goes_on_copying() -> None:
    clock = Clock(0.5, 0.05)
    request = Request((1, 8, 2, 8, 1, 8, 2, 8), 200, sampling=SamplingParams(temperature=1.0, rule="match", seed=5))
    target = ToyTarget(sharpness=3.0, stop=False)
    expected = plain(target, [request])
    hybrid = Hybrid(clock.drafter(Oracle([()], 12, 4, wrong=1.0, seed=1)), Suffix(past_tokens=0))
    found = decode(clock.target(target), hybrid, [request], control=Control(), clock=clock)
    assert outcome(found) == outcome(expected)
    rounds = found[0].rounds
    first = [r.off for r in rounds].index(True)
    assert any(r.source == "suffix" and r.proposed for r in rounds[first:])
    assert sum(r.source == "oracle" for r in rounds[first:]) <= 2 * PROBES


def test_without_a_confidence_a_round_in_many_takes_everything() -> None:
    result = run(Clock(0.01, 0.25), wrong=0.5)
    full = [i for i, r in enumerate(result.rounds) if r.proposed == 6]
    assert any(i % EXPLORE == EXPLORE - 1 for i in full)
    assert len(full) < len(result.rounds) / 4


def test_a_stated_confidence_is_used_draft_by_draft() -> None:
    control = Control()
    control.costs.note_verify(1, 10, 0, 1.0)
    control.costs.note_verify(1, 10, 4, 1.4)
    row = Active(0, Request((1, 2)), [1, 2])
    control.plan([row], [4], Suffix())
    stated = torch.tensor([[0.9, 0.9, 0.1, 0.9]])
    made = Proposal(torch.tensor([[5, 6, 7, 8]]), torch.tensor([4]), None, stated)
    kept = control.cut([row], made)
    assert kept.tokens.tolist() == [[5, 6]]
    assert kept.num_tokens.tolist() == [2]
    control.learn([(row, Round(2, 2, 3, 2))], 4, Seconds(0, 0.1, 1.2, 0))
    assert row.pace.rates[""].promised == pytest.approx(1.8)
    assert row.pace.rates[""].held == 2
    control.plan([row], [4], Suffix())
    stated = torch.tensor([[0.05, 0.9, 0.9, 0.9]])
    assert control.cut([row], Proposal(made.tokens, made.num_tokens, None, stated)).num_tokens.tolist() == [0]
