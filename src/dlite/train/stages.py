"""The stages of a run: which network is trained, from what start, on which loss.

The published order is teacher -> warm-up -> stable (2610.23787, section 4); a recipe may leave any out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dlite.config import Losses, StageRecipe, TrainRecipe
from dlite.drafters.network import BlockInput, DraftOutput, DraftVocab, History
from dlite.errors import ConfigError
from dlite.features.blocks import Blocks, window
from dlite.nn.losses import (
    LossSum,
    acceptance,
    acceptance_entropy,
    candidate_entropy,
    cross_entropy,
    expected_rounds,
    forward_kl,
    l1_distance,
    position_weights,
    prefix_acceptance,
)
from dlite.target.base import Target
from dlite.types import Conversation


def frequent_tokens(
    conversations: Iterable[Conversation], size: int | None, always: Iterable[int]
) -> tuple[int, ...] | None:
    """The draft vocabulary: the ``size`` tokens the target wrote most often, stop tokens among them, in id order."""
    if size is None:
        return None
    counts: Counter[int] = Counter()
    for conversation in conversations:
        counts.update(t for t, wrote in zip(conversation.ids, conversation.wrote, strict=True) if wrote)
    keep = dict.fromkeys(always)
    for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(keep) >= size:
            break
        keep[token] = None
    return tuple(sorted(keep))


def stage_network(
    make: Callable[[Any], Any], config: Any, stage: StageRecipe, target: Target, student: Any, teacher: Any, seed: int
) -> Any:
    """The network a stage trains: a fresh teacher or student, or the ``student`` of the stage before.

    ``make`` builds a network of the drafter's kind from a config.
    """
    if student is not None and not stage.window:
        network = student
    else:
        network = make(teacher_config(config, stage.window) if stage.window else config).attach(target)
        network.start(target, torch.Generator().manual_seed(seed))
    for part in stage.from_teacher:
        if teacher is None:
            raise ConfigError(
                f"stage {stage.name!r} copies {part!r} from a teacher, but no stage before it has a window."
            )
        _part(network, part).load_state_dict(_part(teacher, part).state_dict())
    network.requires_grad_(True)
    for part in stage.freeze:
        own = getattr(network, part, None)
        (own if isinstance(own, torch.nn.Parameter) else _part(network, part)).requires_grad_(False)
    return network


def teacher_config(config: Any, window: int) -> Any:
    """The same drafter with ``window`` positions of history; only a DLite has such a twin. Errors: ``ConfigError``."""
    if not hasattr(config, "history_window"):
        raise ConfigError(
            "a stage with a window trains a teacher for a drafter without history, which only dlite is. Leave the "
            "stage's window out; drafter.window bounds the history of the others."
        )
    return replace(config, history_window=window)


def block_input(blocks: Blocks, K: int, width: int) -> BlockInput:
    """What the network reads for these blocks, drafting K tokens, with ``width`` positions of history."""
    previous = torch.cat([blocks.anchor[:, None], blocks.labels[:, : K - 1]], 1)
    history = None
    if width:
        rows, distance, real = window(blocks, width)
        history = History(blocks.taps, blocks.following, rows, distance, real, blocks.pivot)
    return BlockInput(blocks.taps[blocks.pivot], blocks.anchor, blocks.before, previous, history)


def stage_loss(
    output: DraftOutput,
    blocks: Blocks,
    losses: Losses,
    settings: TrainRecipe,
    target: Target,
    vocab: DraftVocab,
    teacher_logits: Tensor | None,
) -> tuple[LossSum, dict[str, float]]:
    """The stage's weighted loss over counted positions and its parts.

    With a draft vocabulary, p is the target's distribution over it (renormalised), and a block ends before the first
    label outside it.
    """
    logits = output.logits
    K = logits.shape[1]
    weights = position_weights(K, settings.gamma, blocks.counted)
    labels = vocab.to_rows(blocks.labels[:, :K])
    weights = weights * (labels < vocab.size).long().cumprod(1)
    keep = weights > 0
    q, y, w = logits[keep], labels[keep], weights[keep]
    by_acceptance = settings.weights == "acceptance"
    terms: dict[str, LossSum] = {}
    if losses.kl or losses.l1 or losses.confidence or losses.rounds or by_acceptance:
        # Each predicting position serves up to K blocks: its target logits are made once.
        used, place = torch.unique(blocks.rows[:, :K][keep], return_inverse=True)
        p = target.last_tap_logits(blocks.last[used], vocab.ids)[place]
        if losses.rounds or by_acceptance:
            accepted = torch.zeros(keep.shape, device=q.device).masked_scatter(keep, acceptance(q, p))
            if losses.rounds:
                terms["rounds"] = expected_rounds(accepted, keep.float())
            if by_acceptance:
                w = prefix_acceptance(accepted.detach())[keep]
        if losses.kl:
            terms["kl"] = forward_kl(q, p, w)
        if losses.l1:
            terms["l1"] = l1_distance(q, p, w)
        if losses.confidence:
            terms["confidence"] = acceptance_entropy(_given(output.confidence, "confidence")[keep], q, p, w)
    if losses.ce:
        terms["ce"] = cross_entropy(q, y, w)
    if losses.candidates:
        rows, scores = _given(output.candidates, "candidates")
        terms["candidates"] = candidate_entropy(scores[keep], rows[keep], y, w)
    if losses.kl_teacher:
        if teacher_logits is None:
            raise ConfigError(
                "kl_teacher has a weight, but no teacher was trained. Add a stage with a window before it."
            )
        terms["kl_teacher"] = forward_kl(q, teacher_logits[keep], w)
    total = sum((getattr(losses, name) * term.sum for name, term in terms.items()), logits.new_zeros(()))
    return LossSum(total, w.sum()), {name: float(term.sum.detach()) for name, term in terms.items()}


def _given(part: Any, loss: str) -> Any:
    if part is None:
        raise ConfigError(f"losses.{loss} has a weight, but this drafter has no such head. Leave it out.")
    return part


def _part(network: Any, name: str) -> torch.nn.Module:
    part = getattr(network, name, None)
    if not isinstance(part, torch.nn.Module):
        names = [n for n, _ in network.named_children()]
        raise ConfigError(f"the drafter has no part {name!r}. Expected one of {', '.join(names)}.")
    return part
