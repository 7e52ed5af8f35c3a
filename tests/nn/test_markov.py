"""The three Markov heads and the confidence against their loops, and against their own steps."""

from __future__ import annotations

import pytest
import torch

from dlite.nn import naive_markov
from dlite.nn.markov import Cell, Confidence, Markov
from tests.nn.support import randomise

CELLS: list[Cell] = ["vanilla", "gated", "rnn"]


def made(cell: Cell) -> Markov:
    return randomise(Markov(cell, hidden_size=7, rank=5, vocab_out=11, vocab_prev=13).double())


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """hidden [3,4,7] and previous [3,4]."""
    return torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True), torch.randint(13, (3, 4))


@pytest.mark.parametrize("cell", CELLS)
def test_values_and_gradients_equal_the_loops(cell: Cell) -> None:
    head = made(cell)
    hidden, previous = inputs()
    fast = head(head.words(previous), hidden)
    slow = torch.stack([torch.stack(naive_markov.markov(head, hidden[n], previous[n].tolist())) for n in range(3)])
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    wanted, pull = [*([] if cell == "vanilla" else [hidden]), *head.parameters()], torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("cell", CELLS)
def test_stepping_equals_teacher_forcing(cell: Cell) -> None:
    head = made(cell)
    hidden, previous = inputs()
    words, state = head.words(previous), head.initial_state(3)
    whole = head(words, hidden)
    for i in range(4):
        state, bias = head.step(state, words[:, i], hidden[:, i])
        torch.testing.assert_close(bias, whole[:, i])


@pytest.mark.parametrize("cell", CELLS)
def test_only_the_recurrent_form_remembers_earlier_tokens(cell: Cell) -> None:
    head = made(cell)
    hidden, previous = inputs()
    other = previous.clone()
    other[:, 0] = (other[:, 0] + 1) % 13
    change = (head(head.words(previous), hidden) - head(head.words(other), hidden)).abs().amax((0, 2))
    assert change[0] > 0
    assert [bool(c > 0) for c in change[1:]] == [cell == "rnn"] * 3


def test_confidence_equals_the_loops() -> None:
    markov, head = made("vanilla"), randomise(Confidence(7, 5).double())
    hidden, previous = inputs()
    fast = head(markov.words(previous), hidden).sigmoid()
    slow = torch.stack(
        [
            torch.stack([naive_markov.confidence(head, markov, hidden[n, i], int(previous[n, i])) for i in range(4)])
            for n in range(3)
        ]
    )
    torch.testing.assert_close(fast, slow)
    wanted = [hidden, markov.prev_token_embedding.weight, *head.parameters()]
    pull = torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b)
