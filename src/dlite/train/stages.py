"""The stages of a run: which network is trained, from what start, on which loss.

The published order is teacher -> warm-up -> stable (2610.23787, section 4); a recipe may leave any out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from dlite.config import DrafterRecipe, Losses, StageRecipe
from dlite.drafters.dlite import BlockInput, DLite, DLiteConfig, History
from dlite.errors import ConfigError
from dlite.features.blocks import Blocks, window
from dlite.nn.layout import default_taps
from dlite.nn.losses import LossSum, cross_entropy, forward_kl, l1_distance, position_weights
from dlite.target.base import Target, TargetInfo
from dlite.types import Conversation


def network_config(recipe: DrafterRecipe, info: TargetInfo, vocab: tuple[int, ...] | None) -> DLiteConfig:
    """A DLite for this target: the target's own width and head layout unless the recipe says otherwise."""
    backbone = replace(
        info.layer,
        num_layers=recipe.num_layers,
        num_kv_heads=recipe.num_kv_heads or info.layer.num_kv_heads,
        intermediate_size=recipe.intermediate_size or info.layer.intermediate_size,
    )
    return DLiteConfig(
        backbone=backbone,
        vocab_size=info.vocab_size,
        K=recipe.K,
        taps=recipe.taps or default_taps(info.num_layers, recipe.num_taps),
        num_target_layers=info.num_layers,
        rank=recipe.rank,
        mask_token_id=recipe.mask_token_id,
        anchor_group=recipe.anchor_group,
        placeholder=recipe.placeholder,
        draft_vocab=vocab,
        last_tap=recipe.last_tap,
    )


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
    config: DLiteConfig, stage: StageRecipe, target: Target, previous: DLite | None, teacher: DLite | None, seed: int
) -> DLite:
    """The network a stage trains: a fresh teacher or student, or the student of the stage before."""
    if previous is not None and not stage.window and not previous.config.history_window:
        network = previous
    else:
        network = DLite(replace(config, history_window=stage.window)).attach(target)
        network.start(target, torch.Generator().manual_seed(seed))
    for part in stage.from_teacher:
        if teacher is None:
            raise ConfigError(
                f"stage {stage.name!r} copies {part!r} from a teacher, but no stage before it has a window."
            )
        _part(network, part).load_state_dict(_part(teacher, part).state_dict())
    network.requires_grad_(True)
    for part in stage.freeze:
        _part(network, part).requires_grad_(False)
    return network


def block_input(blocks: Blocks, K: int, width: int) -> BlockInput:
    """What the network reads for these blocks, drafting K tokens, with ``width`` positions of history."""
    previous = torch.cat([blocks.anchor[:, None], blocks.labels[:, : K - 1]], 1)
    history = None
    if width:
        rows, distance, real = window(blocks, width)
        history = History(blocks.taps, rows, distance, real)
    return BlockInput(blocks.taps[blocks.pivot], blocks.anchor, blocks.before, previous, history)


def stage_loss(
    logits: Tensor,
    blocks: Blocks,
    losses: Losses,
    gamma: float,
    target: Target,
    ids: Tensor | None,
    rows: Tensor | None,
    teacher_logits: Tensor | None,
) -> tuple[LossSum, dict[str, float]]:
    """The stage's weighted loss over counted positions and its parts: logits [N,K,V'].

    With a draft vocabulary, p is the target's distribution over it (renormalised), and a block ends before the first
    label outside it.
    """
    K = logits.shape[1]
    weights = position_weights(K, gamma, blocks.counted)
    labels = blocks.labels[:, :K]
    if rows is not None and ids is not None:
        labels = rows[labels]
        weights = weights * (labels < len(ids)).long().cumprod(1)
    keep = weights > 0
    q, y, w = logits[keep], labels[keep], weights[keep]
    terms: dict[str, LossSum] = {}
    if losses.ce:
        terms["ce"] = cross_entropy(q, y, w)
    if losses.kl or losses.l1:
        # Each predicting position serves up to K blocks: its target logits are made once.
        used, place = torch.unique(blocks.rows[:, :K][keep], return_inverse=True)
        p = target.last_tap_logits(blocks.last[used], ids)[place]
        if losses.kl:
            terms["kl"] = forward_kl(q, p, w)
        if losses.l1:
            terms["l1"] = l1_distance(q, p, w)
    if losses.kl_teacher:
        if teacher_logits is None:
            raise ConfigError(
                "kl_teacher has a weight, but no teacher was trained. Add a stage with a window before it."
            )
        terms["kl_teacher"] = forward_kl(q, teacher_logits[keep], w)
    total = sum((getattr(losses, name) * term.sum for name, term in terms.items()), logits.new_zeros(()))
    return LossSum(total, w.sum()), {name: float(term.sum.detach()) for name, term in terms.items()}


def _part(network: DLite, name: str) -> torch.nn.Module:
    part = getattr(network, name, None)
    if not isinstance(part, torch.nn.Module):
        names = [n for n, _ in network.named_children()]
        raise ConfigError(f"the drafter has no part {name!r}. Expected one of {', '.join(names)}.")
    return part
