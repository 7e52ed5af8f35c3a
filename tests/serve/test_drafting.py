"""What both engine plug-ins share: our network on an engine's tensors gives our drafts, and the q they were drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dlite.checkpoint import save_drafter
from dlite.drafters.dlite import DLite
from dlite.drafters.network import BlockInput
from dlite.errors import CheckpointError, ConfigError
from dlite.sampling import draw
from dlite.serve.drafting import Greedy, Lent, Sampled, draft, open_dlite
from dlite.target.toy import ToyTarget
from dlite.types import View
from tests.support import tiny_drafter

TARGET = ToyTarget()
K, VOCAB = 4, TARGET.info.vocab_size
VARIANTS: list[dict[str, Any]] = [
    {}, {"anchor_group": 2}, {"placeholder": "token"}, {"last_tap": "normed"}, {"draft_vocab": (1, 3, 4, 7, 9)},
    {"confidence": True},
]  # fmt: skip
Opened = Callable[..., DLite]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Saves a tiny drafter, and opens its folder as an engine would."""

    def make(K: int = K, lent: Lent | None = None, **variant: Any) -> DLite:
        save_drafter(tiny_drafter(TARGET, **variant), tmp_path / "drafter", TARGET.info)
        lent = lent or Lent(replace(TARGET.info, tokenizer_hash=""), TARGET.embed, TARGET.final_norm)
        return open_dlite(tmp_path / "drafter", lent, K, torch.device("cpu"), torch.float32)

    return make


def states(rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Taps, anchors and the tokens before them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (2, rows), generator=generator)
    return torch.randn(rows, 4, TARGET.info.hidden_size, generator=generator), tokens[0], tokens[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_are_those_of_the_drafter(opened: Opened, variant: dict[str, Any]) -> None:
    taps, anchor, before = states(5)
    here = tiny_drafter(TARGET, **variant).freeze()
    known = [[int(b), int(a)] for b, a in zip(before, anchor, strict=True)]
    expected = here.propose(View(anchor, before, taps, known), [K] * 5, Greedy()).tokens
    network = opened(**variant)
    assert torch.equal(draft(network, taps, anchor, before, K, Greedy()), expected)
    assert torch.equal(draft(network, taps, anchor, before, 2, Greedy()), expected[:, :2])
    assert draft(network, taps, anchor, before, 0, Greedy()).shape == (5, 0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_q_is_what_the_drafts_were_drawn_from(opened: Opened, variant: dict[str, Any]) -> None:
    """Against teacher-forced logits on the drafts themselves: of the target's vocabulary, zero where the head cannot speak."""
    rows = 6
    taps, anchor, before = states(rows, seed=1)
    temperature = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.7, 0.0])
    coins = torch.rand(rows, K, generator=torch.Generator().manual_seed(2))
    chooser = Sampled(temperature, coins, VOCAB)
    tokens = draft(opened(**variant), taps, anchor, before, K, chooser)
    trained = tiny_drafter(TARGET, **variant)
    previous = torch.cat([anchor[:, None], tokens[:, :-1]], 1)
    logits = trained(BlockInput(taps, anchor, before, previous)).logits.detach()
    heads = trained.vocab.ids if trained.vocab.ids is not None else torch.arange(VOCAB)
    for row in range(rows):
        for slot in range(K):
            one = logits[row, slot]
            small = torch.zeros(len(heads)).index_fill_(0, one.argmax(), 1.0)
            if temperature[row] > 0:
                small = (one / temperature[row]).softmax(-1)
            q = torch.zeros(VOCAB).index_copy_(0, heads, small)
            torch.testing.assert_close(chooser.probs[row, slot], q, atol=1e-5, rtol=1e-4)
            assert tokens[row, slot] == heads[draw(small, coins[row, slot])]


def test_rows_of_a_batch_draft_alone(opened: Opened) -> None:
    taps, anchor, before = states(4, seed=3)
    network = opened()
    together = draft(network, taps, anchor, before, K, Greedy())
    alone = [draft(network, taps[i : i + 1], anchor[i : i + 1], before[i : i + 1], K, Greedy()) for i in range(4)]
    assert torch.equal(together, torch.cat(alone))


def test_what_is_not_opened(opened: Opened, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"5 drafts a round are asked of .*trained for 1 to 4"):
        opened(K=5)
    with pytest.raises(CheckpointError, match="a DLite that keeps a history"):
        opened(history_window=3)
    small = Lent(replace(TARGET.info, hidden_size=3), TARGET.embed, TARGET.final_norm)
    with pytest.raises(CheckpointError, match="hidden size"):
        opened(lent=small)
    strange = Lent(replace(TARGET.info, tokenizer_hash="another"), TARGET.embed, TARGET.final_norm)
    network = tiny_drafter(TARGET)
    save_drafter(network, tmp_path / "tied", replace(TARGET.info, tokenizer_hash="its own"))
    with pytest.raises(CheckpointError, match="tokenizer hash its own"):
        open_dlite(tmp_path / "tied", strange, K, torch.device("cpu"), torch.float32)


class OnDevice(TorchDispatchMode):
    """Refuses what a CUDA graph cannot hold: reading a value of a tensor, and tensors that live elsewhere."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        assert func is not torch.ops.aten._local_scalar_dense.default, "a value was read"
        for one in tree_leaves(result):
            assert not isinstance(one, Tensor) or one.device.type == "meta", f"{func} made a tensor on {one.device}"
        return result


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_round_stays_on_its_device(variant: dict[str, Any]) -> None:
    """With everything on the meta device, whatever touches the CPU shows."""
    info, meta = TARGET.info, torch.device("meta")
    table = torch.zeros(info.vocab_size, info.hidden_size, device=meta)
    lent = Lent(info, lambda tokens: table[tokens], lambda tap: tap * 2)
    network = tiny_drafter(TARGET, **variant).attach(lent).to(meta)
    taps, anchor, before = (x.to(meta) for x in states(3))
    sampled = Sampled(torch.ones(3, device=meta), torch.zeros(3, K, device=meta), VOCAB)
    for chooser in (Greedy(), sampled):
        with OnDevice():
            assert draft(network, taps, anchor, before, K, chooser).shape == (3, K)
    with pytest.raises(AssertionError, match="on cpu"), OnDevice():
        table[torch.tensor([1])]
