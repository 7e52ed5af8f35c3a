"""`shape` against a plain-Python twin; draws and coins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dlite.errors import RequestError
from dlite.sampling import SamplingParams, adjust, draw, position_coins, round_coins, shape


def naive_shape(logits: list[float], params: SamplingParams) -> list[float]:
    """The same distribution, one rule after the other over one row; refuses cases that rounding could decide."""
    if params.temperature == 0:
        return [float(v == logits.index(max(logits))) for v in range(len(logits))]
    highest = max(logits)
    weights = [math.exp((x - highest) / params.temperature) for x in logits]
    if params.top_k:
        floor = sorted(weights, reverse=True)[: params.top_k][-1]
        weights = [w if w >= floor else 0.0 for w in weights]
    probs = [w / sum(weights) for w in weights]
    if params.top_p < 1:
        before = 0.0
        for v in sorted(range(len(probs)), key=lambda v: (-probs[v], v)):
            assume(abs(before - params.top_p) > 1e-5)
            mass, probs[v] = probs[v], probs[v] if before < params.top_p else 0.0
            before += mass
    if params.min_p:
        floor = params.min_p * max(probs)
        assume(all(abs(p - floor) > 1e-6 or params.min_p == 1 for p in probs))
        probs = [p if p >= floor else 0.0 for p in probs]
    return [p / sum(probs) for p in probs]


@given(
    rows=st.integers(1, 9).flatmap(
        lambda V: st.lists(st.lists(st.integers(-40, 40), min_size=V, max_size=V), min_size=1, max_size=3)
    ),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        top_k=st.integers(0, 10),
        top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
        min_p=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    ),
)
def test_shape_equals_the_plain_rules(rows: list[list[int]], params: SamplingParams) -> None:
    logits = [[x / 8 for x in row] for row in rows]  # exact in fp32, with ties
    expected = torch.tensor([naive_shape(row, params) for row in logits])
    found = shape(torch.tensor(logits), params)
    assert (found > 0).tolist() == (expected > 0).tolist()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-3, 1e-12, 1e-38, 1e-45, 1e-300])
def test_a_tiny_temperature_is_greedy_and_finite(temperature: float) -> None:
    logits = torch.tensor([[1.0, 30.0, -torch.inf, 29.0], [-5.0, -700.0, -6.0, -torch.inf]])
    tiny, zero = (shape(logits, SamplingParams(temperature=t)) for t in (temperature, 0.0))
    assert torch.equal(tiny, zero)


def test_excluded_tokens_stay_excluded() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 2.0]])
    for params in (SamplingParams(temperature=3.0), SamplingParams(temperature=1.0, top_k=3, top_p=0.99, min_p=0.01)):
        assert shape(logits, params)[0, 1] == 0


@given(st.lists(st.sampled_from([0.0, 0.0, 1e-30, 0.25, 1.0, 7.0]), min_size=1, max_size=9), st.floats(0, 1))
def test_draw_inverts_the_cdf_and_never_returns_a_weightless_token(weights: list[float], coin: float) -> None:
    assume(any(weights))
    coin = min(coin, 1 - 2.0**-24)
    token = int(draw(torch.tensor([weights]), torch.tensor([coin])))
    assert weights[token] > 0
    total = sum(weights)
    slack = 1e-6 * total
    assert sum(weights[:token]) - slack <= coin * total <= sum(weights[: token + 1]) + slack


def test_draw_takes_any_leading_shape() -> None:
    weights = torch.tensor([[0.0, 1.0, 1.0], [2.0, 0.0, 0.0]]).expand(4, 2, 3)
    assert draw(weights, torch.tensor([0.6, 0.6]).expand(4, 2)).tolist() == [[2, 0]] * 4


def test_the_highest_coin_meets_trailing_zeros() -> None:
    """The level rounds up to the total here: once, that meant one token past the end."""
    weights = torch.full((1, 1000), 1 / 3)
    weights[:, 990:] = 0
    assert draw(weights, torch.tensor([1.0])).tolist() == [989]


def test_coins_are_reproducible_and_fresh() -> None:
    coins = [
        position_coins(7, 5, 3),
        round_coins(7, "accept", 5, 3),
        round_coins(7, "draft", 5, 3),
        round_coins(7, "accept", 6, 3),
        round_coins(8, "accept", 5, 3),
    ]
    again = [position_coins(7, 5, 3), round_coins(7, "accept", 5, 3)]
    assert torch.equal(coins[0], again[0])
    assert torch.equal(coins[1], again[1])
    everything = torch.cat(coins)
    assert len(everything.unique()) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < 1


def test_a_coin_does_not_depend_on_how_many_are_asked() -> None:
    assert torch.equal(position_coins(3, 10, 6)[2:], position_coins(3, 12, 4))
    assert torch.equal(round_coins(3, "draft", 10, 6)[:2], round_coins(3, "draft", 10, 2))


def test_coins_are_uniform() -> None:
    counts = torch.histc(position_coins(1, 0, 2000), bins=10, min=0, max=1)
    assert counts.min() > 150  # mean 200, sd 13
    assert counts.max() < 250


def test_any_integer_is_a_seed_of_its_own() -> None:
    """Seeds from 2**63 on, and negative ones, once passed through a float."""
    first = [float(position_coins(seed, 0, 1)) for seed in (-1, -2, 1, 2**63, 2**63 + 1)]
    assert len(set(first)) == 5


def test_penalty_shrinks_what_was_seen_and_bias_adds() -> None:
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5], [2.0, -2.0, 1.0, 0.5]])
    params = SamplingParams(repetition_penalty=2.0, logit_bias={3: 1.5})
    expected = torch.tensor([[1.0, -4.0, 1.0, 2.0], [2.0, -2.0, 0.5, 2.0]])
    assert torch.equal(adjust(logits, params, [[0, 1, 0], [2]]), expected)
    assert logits[0, 0] == 2, "the caller's logits stay as they are"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1), ("top_p", 0.0),
        ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5), ("repetition_penalty", 0.0), ("rule", "typical"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{field} is {value}. Expected "):
        SamplingParams(**{field: value})
