from __future__ import annotations

import torch

from dlite.bench.check import Check, compare, logits_after
from dlite.bench.run import Arm, run
from dlite.sampling import SamplingParams
from dlite.target.toy import ToyTarget

from .support import Guesser, LyingTarget, make_calls

PROMPT = (3, 1, 4, 1, 5)


def best(target: ToyTarget, ids: tuple[int, ...]) -> list[int]:
    return logits_after(target, ids, 512).argsort(descending=True).tolist()


def test_equal_ids_have_no_difference(target: ToyTarget) -> None:
    assert compare(target, PROMPT, (1, 2), (1, 2), SamplingParams(), tie_gap=1e-4, prefill_chunk=2) is None


def test_a_difference_carries_both_logits(target: ToyTarget) -> None:
    first, second, *_ = best(target, (*PROMPT, 7))
    found = compare(target, PROMPT, (7, first), (7, second, 9), SamplingParams(), tie_gap=1e-4, prefill_chunk=2)
    logits = logits_after(target, (*PROMPT, 7), 512)
    assert found is not None
    assert (found.position, found.plain_token, found.arm_token) == (1, first, second)
    assert (found.plain_logit, found.arm_logit) == (float(logits[first]), float(logits[second]))
    assert found.gap == float(logits[first]) - float(logits[second])
    assert not found.near_tie
    assert not Check("a", "b", found).passed


def test_a_near_tie_must_lie_between_the_best_two(target: ToyTarget) -> None:
    first, second, third, *_ = best(target, PROMPT)
    target._head[second] = target._head[first]
    tie = compare(target, PROMPT, (first,), (second,), SamplingParams(), tie_gap=1e-4, prefill_chunk=512)
    assert tie is not None
    assert tie.near_tie
    other = compare(target, PROMPT, (first,), (third,), SamplingParams(), tie_gap=1e-4, prefill_chunk=512)
    assert other is not None
    assert not other.near_tie


def test_a_missing_token_is_a_difference(target: ToyTarget) -> None:
    found = compare(target, PROMPT, (1, 2), (1,), SamplingParams(), tie_gap=1e-4, prefill_chunk=512)
    assert found is not None
    assert (found.position, found.plain_token, found.arm_token, found.near_tie) == (1, 2, None, False)


def test_penalties_count_in_the_gap(target: ToyTarget) -> None:
    first, second, *_ = best(target, PROMPT)
    logits = logits_after(target, PROMPT, 512)
    bias = {second: float(logits[first] - logits[second])}
    found = compare(
        target, PROMPT, (first,), (second,), SamplingParams(logit_bias=bias), tie_gap=1e-4, prefill_chunk=512
    )
    assert found is not None
    assert found.near_tie


def test_a_tie_that_rounding_turns_over_is_counted_apart(lying_target: LyingTarget) -> None:
    target = lying_target
    call = make_calls("short", 1)[0]
    favourite = run(target, [], [call]).trials[0].generation.token_ids[5]
    target.lie = (favourite + 1) % 12
    target._head[target.lie] = target._head[favourite] * (1 - 1e-7)  # a hair below, until several rows are computed
    target._embedding = torch.zeros_like(target._embedding)
    target.off = 2e-5
    result = run(target, [Arm("guesser", Guesser(target, right=1.0))], [call])
    (check,) = result.checks
    assert check.difference is not None
    assert check.difference.near_tie
    assert result.lossless("guesser") is True
