"""The law of sampled requests against loops over single tokens, and draws whose q is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dlite.sampling import draw
from dlite.serve.sglang_plugin.law import Drawing, Law, law_of, probabilities

ALL = 1 << 30  # SGLang's top-k for the whole vocabulary


def law(rows: Sequence[tuple[int, float, int, float, float]], *, cuts: bool = True) -> Law:
    """From (place, temperature, top_k, top_p, min_p) of each sampled request."""
    places, *columns = zip(*rows, strict=True)
    temperature, top_k, top_p, min_p = (torch.tensor(column) for column in columns)
    return Law(tuple(places), temperature, top_k, top_p, min_p, cuts)


def by_hand(logits: Sequence[float], temperature: float, top_k: int, top_p: float, min_p: float) -> list[float]:
    """One row, token by token from the likeliest."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    probs = [w / sum(weights) for w in weights]
    order = sorted(range(len(probs)), key=lambda v: (-probs[v], v))
    kept, before = {}, 0.0
    for rank, token in enumerate(order):
        if rank < top_k and before <= top_p and probs[token] >= min_p * probs[order[0]]:
            kept[token] = probs[token]
        before += probs[token]
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(len(probs))]


@given(
    st.integers(0, 2**31),
    st.lists(
        st.tuples(
            st.floats(0.1, 3),
            st.sampled_from([2, 3, ALL]),
            st.sampled_from([0.3, 0.8, 1.0]),
            st.sampled_from([0.0, 0.2]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_rows_equal_loops(seed: int, settings: list[tuple[float, int, float, float]]) -> None:
    logits = torch.randn(len(settings), 2, 7, generator=torch.Generator().manual_seed(seed)) * 3
    found = probabilities(logits, law([(i, *one) for i, one in enumerate(settings)]))
    for row, rows, one in zip(found, logits.tolist(), settings, strict=True):
        expected = torch.tensor([by_hand(each, *one) for each in rows])
        assert torch.allclose(row, expected, atol=1e-5)


def test_without_cuts_it_is_the_softmax() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    found = probabilities(logits, law([(0, 2.0, ALL, 1.0, 0.0), (1, 0.5, ALL, 1.0, 0.0)], cuts=False))
    assert torch.allclose(found, torch.stack([(logits[0] / 2).softmax(-1), (logits[1] * 2).softmax(-1)]))


def info(sampling: Sequence[Any]) -> SimpleNamespace:
    """The tensors of SGLang for a batch."""
    columns: dict[str, Tensor] = {
        "temperatures": torch.tensor([[one.temperature] for one in sampling]),
        "top_ks": torch.tensor([one.top_k for one in sampling]),
        "top_ps": torch.tensor([one.top_p for one in sampling]),
        "min_ps": torch.tensor([one.min_p for one in sampling]),
    }
    return SimpleNamespace(
        **columns,
        need_top_k_sampling=any(one.top_k != ALL for one in sampling),
        need_top_p_sampling=any(one.top_p != 1 for one in sampling),
        need_min_p_sampling=any(one.min_p > 0 for one in sampling),
    )


def asked(temperature: float = 1.0, top_k: int = ALL, top_p: float = 1.0, min_p: float = 0.0) -> SimpleNamespace:
    return SimpleNamespace(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def test_the_law_of_a_batch() -> None:
    greedy = asked(1.0, 1)  # what SGLang makes of temperature 0
    assert law_of([greedy, greedy], info([greedy, greedy])) is None
    batch = [greedy, asked(0.5), greedy, asked(2.0, 4, 0.9, 0.1)]
    found = law_of(batch, info(batch))
    assert found is not None
    assert found.rows == (1, 3)
    assert found.temperature.tolist() == [0.5, 2.0]
    assert (found.top_k.tolist(), found.cuts) == ([ALL, 4], True)
    assert [round(x, 3) for x in (*found.top_p.tolist(), *found.min_p.tolist())] == [1.0, 0.9, 0.0, 0.1]
    part = found.part(1, 9)
    assert (part.rows, part.temperature.tolist()) == ((3,), [2.0])
    assert not law_of([asked(0.5)], info([asked(0.5)])).cuts  # type: ignore[union-attr]


def test_draws_keep_the_q_they_came_from() -> None:
    """Greedy rows take the likeliest token; the others the token that their coin points at, mapped to a token id."""
    generator = torch.Generator().manual_seed(3)
    logits, coins = torch.randn(2, 3, 5, generator=generator), torch.rand(2, 2, generator=generator)
    ids = torch.tensor([40, 41, 42, 43, 44])
    one = law([(0, 0.7, 3, 1.0, 0.0), (2, 1.5, ALL, 0.8, 0.0)])
    drawing = Drawing(one, coins)
    for slot in range(2):
        tokens = drawing.choose(slot, logits[slot], ids)
        q = probabilities(logits[slot][[0, 2], None], one)[:, 0]
        assert torch.equal(drawing.probs[slot], q)
        expected = draw(q, coins[:, slot])
        assert tokens.tolist() == [40 + int(expected[0]), 40 + int(logits[slot][1].argmax()), 40 + int(expected[1])]
        assert bool((q.gather(1, expected[:, None]) > 0).all())
    rows = Drawing(one, coins).choose(0, logits[0])
    assert Drawing(one, coins).choose(0, logits[0], ids).tolist() == ids[rows].tolist()
