"""What an implementation of a drafter saw and made in the rounds of a script, tensor by tensor in the order of the work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Script:
    """Rounds that every implementation plays alike.

    ids: prompt and the target's own greedy answer; prompt: tokens of the prompt; anchors: position of each round's
    anchor; K: drafts a round. In round b so many drafts are accepted that anchors[b+1] is the next anchor.
    """

    ids: tuple[int, ...]
    prompt: int
    anchors: tuple[int, ...]
    K: int

    def accepted(self, anchor: int) -> int | None:
        """Drafts accepted in the round of this anchor, None behind the last round."""
        at = self.anchors.index(anchor) if anchor in self.anchors[:-1] else None
        return None if at is None else self.anchors[at + 1] - anchor - 1

    def following(self) -> Tensor:
        """The tokens that really come behind each anchor, which every slot is shown: [B,K]."""
        return torch.tensor([self.ids[a + 1 : a + 1 + self.K] for a in self.anchors])


@dataclass(frozen=True)
class Trace:
    """B rounds, None for what an implementation cannot show. The order of the fields is that of the work.

    tokens [B,2] the token before the anchor, the anchor   taps [B,n,D] raw, at the pivot
    history [B,1+E] positions read behind the pivot, and the mean of their values in the first layer
    context [B,C,D] rows as the backbone reads them   queries [B,Q,D] rows of the block before the first layer
    positions [B,C+Q] of both, the anchor's own taken off   hidden [B,Q,D] rows of the block after the last norm
    slots [B,K,D] those of them that predict draft 1..K   rows [B,*] rows of the draft vocabulary that the head was fed
    logits [B,K,V'] over the draft vocabulary   drafts [B,K] the best token of each slot

    ``astray`` is where the target itself left the script, if it did.
    """

    tokens: Tensor
    taps: Tensor | None = None
    history: Tensor | None = None
    context: Tensor | None = None
    queries: Tensor | None = None
    positions: Tensor | None = None
    hidden: Tensor | None = None
    slots: Tensor | None = None
    rows: Tensor | None = None
    logits: Tensor | None = None
    drafts: Tensor | None = None
    astray: int | None = None

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors it has, by name, in order."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                yield field.name, value


@dataclass(frozen=True)
class Difference:
    """The first tensor that differs: its name and where, [B,...] without the last axis for vectors."""

    name: str
    found: Tensor
    expected: Tensor
    at: Tensor


def first_difference(found: Trace, expected: Trace, tolerance: float) -> Difference | None:
    """The first tensor, in the order of the work, that both have and that differs."""
    have = dict(found.tensors())
    for name, right in expected.tensors():
        if name not in have:
            continue
        mine, right = have[name], right[: len(found.tokens)]
        at = differs(mine, right, tolerance)
        if name == "drafts" and expected.logits is not None:
            at &= ~near_ties(expected.logits[: len(mine)], tolerance)
        if at.any():
            return Difference(name, mine, right, at)
    return None


def differs(found: Tensor, expected: Tensor, tolerance: float) -> Tensor:
    """Where two tensors differ: numbers one by one, vectors by their relative distance. All of it for other shapes."""
    if found.shape != expected.shape:
        return torch.ones(1, dtype=torch.bool)
    if not expected.is_floating_point():
        return found != expected
    found, expected = found.float(), expected.float()
    silent = torch.isneginf(found) & torch.isneginf(expected)  # rows of a vocabulary that a slot cannot say
    found, expected = found.masked_fill(silent, 0), expected.masked_fill(silent, 0)
    distance = (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
    close: Tensor = distance <= tolerance  # NaN is not
    return ~close


def near_ties(logits: Tensor, tolerance: float) -> Tensor:
    """Slots whose two best tokens rounding may exchange: logits [B,K,V] -> [B,K]."""
    best = logits.float().topk(2, -1).values
    return (best[..., 0] - best[..., 1]) < tolerance * best[..., 0].abs().clamp_min(1)
