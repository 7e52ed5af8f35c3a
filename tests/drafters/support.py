"""A small one of every drafter, random but lively, for the contract that all of them keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters import drafter_class, load_drafter
from dlite.drafters.base import Chooser, Drafter
from dlite.target.base import Target
from dlite.types import Proposal, View

# (name, recipe settings): one line a drafter and variant. The contract runs over all of them.
TRAINED: list[tuple[str, dict[str, Any]]] = [
    ("dlite", {}),
    ("dlite", {"window": 5}),
    ("dlite", {"anchor_group": 2, "draft_vocab": True}),
    ("dflash", {}),
    ("dflash", {"options": {"slots": "anchor_predicts"}, "draft_vocab": True}),
    ("dflash", {"window": 6, "placeholder": "token"}),
]
WEIGHTLESS: list[str] = []  # names that load_drafter makes without a folder


def label(case: tuple[str, dict[str, Any]] | str) -> str:
    """A readable test id."""
    return case if isinstance(case, str) else "-".join([case[0], *map(str, case[1])])


def tiny(name: str, target: Target, *, K: int = 4, seed: int = 0, draft_vocab: bool = False, **settings: Any) -> Any:
    """An untrained network of a kind, its layers scaled up so that every input matters."""
    sizes = {"num_layers": 2, "num_taps": 3, "rank": 8, "mask_token_id": target.info.vocab_size - 1, "history": 64}
    recipe = DrafterRecipe(kind=name, K=K, **{**sizes, **settings})
    vocab = tuple(range(0, target.info.vocab_size, 2)) if draft_vocab else None
    kind = drafter_class(name)
    network = kind(kind.configure(recipe, target.info, vocab)).attach(target)
    generator = torch.Generator().manual_seed(seed)
    network.start(target, generator)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.weight.add_(0.3 * torch.randn(module.weight.shape, generator=generator))
            elif isinstance(module, nn.Embedding):
                module.weight.add_(torch.randn(module.weight.shape, generator=generator))
    return network.eval()


def ready(case: tuple[str, dict[str, Any]] | str, target: Target, *, K: int = 4) -> Drafter:
    """A drafter ready to decode."""
    return load_drafter(case, target) if isinstance(case, str) else tiny(case[0], target, K=K, **case[1]).freeze()


@dataclass
class Listener:
    """Any drafter, with the logits it showed for each committed sequence and the drafts that were chosen."""

    inner: Drafter
    heard: dict[tuple[int, ...], tuple[Tensor, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.taps, self.max_drafts = self.inner.name, self.inner.taps, self.inner.max_drafts

    def new_memory(self, rows: int) -> Any:
        """As the inner drafter."""
        return self.inner.new_memory(rows)

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """What the inner drafter proposes, overheard."""
        ear = _Ear(chooser)
        proposal = self.inner.propose(view, counts, ear)
        for b, (tokens, count) in enumerate(zip(view.tokens, counts, strict=True)):
            if count and ear.slots:
                drafts = proposal.tokens[b, : min(count, len(ear.slots))].tolist()
                self.heard[tuple(tokens)] = (torch.stack([s[b] for s in ear.slots[: len(drafts)]]), drafts)
        return proposal

    def state_bytes(self, context: int) -> int:
        """As the inner drafter."""
        return self.inner.state_bytes(context)


class _Ear:
    def __init__(self, inner: Chooser) -> None:
        self.inner = inner
        self.slots: list[Tensor] = []

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        self.slots.append(logits.clone())
        return self.inner.choose(slot, logits, ids)

    def select(self, index: Sequence[int]) -> Chooser:
        raise NotImplementedError("a composed drafter is listened to part by part")
