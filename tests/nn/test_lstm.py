"""The LSTM cell against its loops, its own steps and PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dlite.nn.lstm import Form, LSTMCell
from dlite.nn.naive_lstm import lstm
from tests.nn.support import randomise

FORMS = ["gelu", "tanh"]


def made(form: Form) -> LSTMCell:
    return randomise(LSTMCell(7, 5, form).double())


@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_equal_the_loops(form: Form) -> None:
    cell = made(form)
    hidden = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    inputs = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    fast = cell(hidden, inputs)
    slow = torch.stack([torch.stack(lstm(cell, hidden[n], list(inputs[n]))) for n in range(3)])
    torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-9)
    wanted, pull = [hidden, inputs, *cell.parameters()], torch.randn_like(fast)
    for a, b in zip(torch.autograd.grad(fast, wanted, pull), torch.autograd.grad(slow, wanted, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_stepping_equals_teacher_forcing(form: Form) -> None:
    cell = made(form)
    hidden, inputs = torch.randn(3, 5).double(), torch.randn(3, 4, 7).double()
    whole, state = cell(hidden, inputs), cell.begin(hidden)
    for slot in range(4):
        state = cell.step(state, cell.from_input(inputs[:, slot]))
        torch.testing.assert_close(state.hidden, whole[:, slot])


def test_the_tanh_form_is_the_textbook_cell() -> None:
    cell, other = made("tanh"), nn.LSTMCell(7, 5).double()
    order = [1, 0, 3, 2]  # theirs is input, forget, new, output
    with torch.no_grad():
        for theirs, ours in (
            (other.weight_ih, cell.from_input.weight),
            (other.weight_hh, cell.from_state.weight),
            (other.bias_ih, cell.bias),
        ):
            theirs.copy_(torch.cat([ours.chunk(4)[gate] for gate in order]))
        other.bias_hh.zero_()
    state = cell.begin(torch.randn(3, 5).double())
    hidden, kept = state.hidden, state.cell
    for x in torch.randn(4, 3, 7).double():
        state = cell.step(state, cell.from_input(x))
        hidden, kept = other(x, (hidden, kept))
        torch.testing.assert_close(state.hidden, hidden)
        torch.testing.assert_close(state.cell, kept)
