"""The recursive layer against its loops over one block, values and gradients, the shared history among them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dlite.nn import naive_recursive as naive
from dlite.nn.backbone import BackboneConfig
from dlite.nn.past import SharedPast
from dlite.nn.recursive import MergedEntry, Recursive, Steps, WideEntry
from tests.nn.support import randomise

CONFIGS = [
    BackboneConfig(7, 1, num_heads=6, num_kv_heads=2, head_dim=4, intermediate_size=11),
    BackboneConfig(5, 1, num_heads=3, num_kv_heads=1, head_dim=6, intermediate_size=9, qk_norm=False),
]
ENTRIES = [WideEntry, MergedEntry]
REAL = torch.tensor([[True, True, True], [False, False, True], [False, False, False]])  # the last begins a text
INDEX = torch.tensor([[0, 1, 2], [4, 4, 3], [1, 1, 1]])


def inputs(D: int, K: int) -> list[Tensor]:
    """Words and features of five shared positions, features of three pivots, and the words of their K steps."""
    shapes = ((5, D), (5, D), (3, D), (3, K, D))
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def fast(model: Recursive, words: Tensor, before: Tensor, pivots: Tensor, drafted: Tensor) -> Tensor:
    rows = model.layer.entry(words, before)[1]
    past = SharedPast(rows, INDEX, torch.tensor([4, 3, 2]).expand(3, 3), REAL, model.config)
    steps = Steps(model, past, torch.tensor([-1]))
    features, outputs = pivots, []
    for k in range(drafted.shape[1]):
        features = steps.take(drafted[:, k], features)
        outputs.append(features)
    return torch.stack(outputs, 1)


def slow(model: Recursive, words: Tensor, before: Tensor, pivots: Tensor, drafted: Tensor) -> Tensor:
    blocks = []
    for n in range(3):
        rows = [(int(INDEX[n, w]), w - 4) for w in range(3) if REAL[n, w]]
        past = [((words[row], before[row]), position) for row, position in rows]
        blocks.append(torch.stack(naive.steps(model, past, pivots[n], drafted[n], -1)))
    return torch.stack(blocks)


@pytest.mark.parametrize("config", CONFIGS, ids=["norms", "no norms"])
@pytest.mark.parametrize("entry", ENTRIES)
def test_values_and_gradients_equal_the_loops(config: BackboneConfig, entry: type[WideEntry | MergedEntry]) -> None:
    model = randomise(Recursive(config, entry(config)).double())
    given = inputs(config.hidden_size, 3)
    found, wanted = fast(model, *given), slow(model, *given)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)  # RoPE's tables are fp32
    learned, pull = [*given, *model.layer.parameters()], torch.randn_like(found)
    for a, b in zip(torch.autograd.grad(found, learned, pull), torch.autograd.grad(wanted, learned, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_step_reads_all_steps_before_it(entry: type[WideEntry | MergedEntry]) -> None:
    config = CONFIGS[0]
    model = randomise(Recursive(config, entry(config)).double())
    given = inputs(config.hidden_size, 4)
    found = fast(model, *given)
    moved = torch.autograd.grad(found[:, 3].sum(), given[3], retain_graph=True)[0].abs().amax((0, 2))
    assert (moved > 0).all()
    ahead = torch.autograd.grad(found[:, 1].sum(), given[3])[0].abs().amax((0, 2))
    assert (ahead > 0).tolist() == [True, True, False, False]


def test_without_a_past_it_sees_its_own_steps() -> None:
    config = CONFIGS[0]
    model = randomise(Recursive(config, WideEntry(config)).double())
    _, _, pivots, drafted = inputs(config.hidden_size, 2)
    steps = Steps(model, None, torch.tensor([5]))
    first = steps.take(drafted[:, 0], pivots)
    found = torch.stack([first, steps.take(drafted[:, 1], first)], 1)
    for n in range(3):
        alone = torch.stack(naive.steps(model, [], pivots[n], drafted[n], 5))
        torch.testing.assert_close(found[n], alone, rtol=1e-5, atol=1e-6)
