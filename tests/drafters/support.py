"""A small one of every drafter, random but lively, for the contract that all of them keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dlite.config import DrafterRecipe
from dlite.drafters import drafter_class, load_drafter
from dlite.drafters.base import Chooser, Drafter
from dlite.drafters.draft_model import DraftModel
from dlite.drafters.hybrid import Hybrid
from dlite.drafters.network import DraftOutput
from dlite.drafters.ngram import NGram
from dlite.drafters.suffix import Suffix
from dlite.features.capture import Capturer, CaptureSettings
from dlite.target.base import Target
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.train.stages import block_input
from dlite.types import Conversation, Proposal, View
from tests.support import tiny_model


def draft_model(target: Target, K: int) -> DraftModel:
    """A model that often agrees with the target: a blunter toy, or the tiny transformer with its weights shaken."""
    if isinstance(target, ToyTarget):
        return DraftModel(ToyTarget(target.info.vocab_size, sharpness=0.7), target.info, K)
    model = tiny_model("llama", context=200, num_hidden_layers=6)
    for weight in model.parameters():
        weight += 0.003 * torch.randn(weight.shape)
    return DraftModel(HFTarget(model, None, "near"), target.info, K)


def ngram(target: Target, K: int) -> NGram:
    """It always makes K drafts at most."""
    return NGram(K)


def suffix(target: Target, K: int) -> Suffix:
    """Without past outputs: with them it drafts better after other requests, which its own tests show."""
    return Suffix(past_tokens=0, K=K)


def hybrid(target: Target, K: int) -> Hybrid:
    """With a model that remembers nothing."""
    return Hybrid(tiny("dlite", target, K=K).freeze(), suffix(target, K))


def hybrid_of_a_model_with_history(target: Target, K: int) -> Hybrid:
    """With a model whose memory must keep step although it does not draft in every round."""
    return Hybrid(tiny("dflash", target, K=K, window=6).freeze(), suffix(target, K))


# (name, recipe settings): one line a drafter and variant. The contract runs over all of them.
TRAINED: list[tuple[str, dict[str, Any]]] = [
    ("dlite", {}),
    ("dlite", {"window": 5, "options": {"query": "taps"}}),
    ("dlite", {"options": {"join": "features", "start": "random"}}),
    ("dlite", {"anchor_group": 2, "draft_vocab": True}),
    ("dlite", {"options": {"confidence": True}}),
    ("medusa", {}),
    ("medusa", {"last_tap": "raw", "draft_vocab": True}),
    ("lstm", {}),
    ("lstm", {"options": {"cell": "tanh", "head": "own"}, "draft_vocab": True}),
    ("dflash", {}),
    ("dflash", {"options": {"slots": "anchor_predicts"}, "draft_vocab": True}),
    ("dflash", {"window": 6, "placeholder": "token"}),
    ("dflash2", {"options": {"candidates": 3}}),
    ("dflash2", {"options": {"candidates": 3, "slots": "anchor_predicts"}, "draft_vocab": True}),
    ("dflash2", {"window": 6, "placeholder": "token"}),
    ("dspark", {}),
    ("dspark", {"options": {"head": "rnn"}, "draft_vocab": True}),
    ("dspark", {"options": {"head": "gated", "slots": "placeholders"}, "window": 6}),
    ("dflow", {}),
    ("dflow", {"window": 6, "placeholder": "token", "draft_vocab": True}),
    ("eagle3", {"taps": (0, 2, 4)}),
    ("eagle3", {"taps": (1, 4), "window": 6, "draft_vocab": True}),
    ("eagle3", {"taps": (1, 2, 4), "window": 1}),
    ("mtp", {}),
    ("mtp", {"window": 6, "last_tap": "raw"}),
]
Maker = Callable[[Target, int], Drafter]
# Names that load_drafter makes without a folder, or functions of that name that make one with K drafts for a target.
WEIGHTLESS: list[str | Maker] = [draft_model, ngram, suffix, hybrid, hybrid_of_a_model_with_history]
Case = tuple[str, dict[str, Any]] | str | Maker
# These learn from rounds, which are not in the tokens: a request that is preempted and resumed starts to learn anew.
LEARNING: list[Case] = [hybrid, hybrid_of_a_model_with_history]
# Kinds with a part that hands something from one round to the next, which a block of training does not have and a
# preemption loses: the rows of dflow's rejected drafts are no function of the tokens. Where rounds are compared across
# such a gap the part is silenced, and the kind's own tests show that the gap costs that part and nothing else.
ROUND_LOCAL = {"dflow": "relay"}


def label(case: Case) -> str:
    """A readable test id."""
    if callable(case):
        return case.__name__
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


def ready(case: Case, target: Target, *, K: int = 4, round_local: bool = True) -> Drafter:
    """A drafter ready to decode; ``round_local`` False silences what it hands from one round to the next."""
    if callable(case):
        return case(target, K)
    if isinstance(case, str):
        return load_drafter(case, target)
    network = tiny(case[0], target, K=K, **case[1])
    if case[0] in ROUND_LOCAL and not round_local:
        getattr(network, ROUND_LOCAL[case[0]]).silence()
    return network.freeze()


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


@dataclass
class Forced:
    """A chooser that is told the drafts [B,K], and keeps the logits it was shown."""

    drafts: Tensor
    shown: list[Tensor] = field(default_factory=list)

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The draft of this slot."""
        self.shown.append(logits.clone())
        return self.drafts[:, slot]

    def select(self, index: Sequence[int]) -> Chooser:
        """The same for some of the requests."""
        return Forced(self.drafts[list(index)])


def forced_round(
    network: Any, target: Target, ids: tuple[int, ...], drafts: tuple[int, ...]
) -> tuple[Proposal, Tensor, DraftOutput]:
    """One block behind ``ids``, its last token the anchor, with these drafts: decoded and trained.

    The proposal, the logits [K,V'] the chooser was shown, and the training output of the same single block.
    """
    K, history = len(drafts), network.history
    talk = Conversation("c", "s", (*ids, *drafts), (False,) * (len(ids) - 1) + (True,) * (K + 1), True, False)
    blocks = Capturer(target, CaptureSettings(network.taps, K, history=history)).capture(talk)
    assert blocks is not None
    assert len(blocks) == 1
    with torch.no_grad():
        output = network(block_input(blocks, K, history))
    known = torch.tensor([ids[:-1]])
    taps = target.forward(known, target.new_cache(1, len(ids)), 0, network.taps, "taps").taps
    memory = network.new_memory(1)
    if memory is not None:
        memory.observe(0, known, taps, [len(ids) - 1])
    view = View(torch.tensor(ids[-1:]), torch.tensor(ids[-2:-1]), taps[:, -1], [ids], memory, range(1))
    chooser = Forced(torch.tensor([drafts]))
    return network.propose(view, [K], chooser), torch.stack(chooser.shown, 1)[0], output


class _Ear:
    def __init__(self, inner: Chooser) -> None:
        self.inner = inner
        self.slots: list[Tensor] = []

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        self.slots.append(logits.clone())
        return self.inner.choose(slot, logits, ids)

    def select(self, index: Sequence[int]) -> Chooser:
        ear = _Ear(self.inner.select(index))
        ear.slots = self.slots
        return ear
