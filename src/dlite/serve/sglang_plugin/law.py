"""The law that sampled requests of a batch ask for, and draft tokens drawn from the drafter's own law under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dlite.sampling import draw


@dataclass(frozen=True)
class Law:
    """How S sampled requests turn logits into tokens; the others of the batch take the likeliest.

    rows: their places in the batch; temperature, top_k, top_p, min_p [S]. ``cuts``: top-k, top-p or min-p is asked for.
    """

    rows: tuple[int, ...]
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    cuts: bool

    def part(self, first: int, end: int) -> Law:
        """Some of the requests."""
        cut = slice(first, end)
        return Law(self.rows[cut], self.temperature[cut], self.top_k[cut], self.top_p[cut], self.min_p[cut], self.cuts)


def law_of(sampling: Sequence[object], info: object) -> Law | None:
    """The law of a batch of SGLang: the sampling parameters of its requests, and the same as tensors. None: all greedy.

    SGLang makes temperature 0 a top-k of 1.
    """
    rows = tuple(row for row, one in enumerate(sampling) if one.top_k > 1)  # type: ignore[attr-defined]
    if not rows:
        return None
    named = {"temperature": "temperatures", "top_k": "top_ks", "top_p": "top_ps", "min_p": "min_ps"}
    tensors = {ours: getattr(info, theirs).flatten()[list(rows)] for ours, theirs in named.items()}
    cuts = any(getattr(info, f"need_{name}_sampling") for name in ("top_k", "top_p", "min_p"))
    return Law(rows, cuts=cuts, **tensors)


def probabilities(logits: Tensor, law: Law) -> Tensor:
    """What SGLang samples from: logits [S,R,V] -> [S,R,V] fp32.

    Its order: temperature; then top-k and top-p both of the whole law, by rank; then min-p against the best token.
    """
    shape = (-1, 1, 1)
    probs = (logits.float() / law.temperature.float().view(shape)).softmax(-1)
    if not law.cuts:
        return probs
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    cut = (rank >= law.top_k.view(shape)) | (ordered.cumsum(-1) - ordered > law.top_p.view(shape))
    cut |= ordered < ordered[..., :1] * law.min_p.view(shape)
    kept = torch.zeros_like(probs).scatter_(-1, order, ordered.masked_fill(cut, 0))
    return kept / kept.sum(-1, keepdim=True)


class Drawing:
    """A chooser that takes the likeliest token, for sampled requests draws one, and keeps the q of what it drew.

    coins [S,K] in [0,1). ``probs`` afterwards: K tensors [S,V'] over the draft vocabulary.
    """

    def __init__(self, law: Law, coins: Tensor) -> None:
        self.law, self.coins = law, coins
        self.probs: list[Tensor] = []

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """See ``Picker``."""
        rows = list(self.law.rows)
        chosen = logits.argmax(-1)
        self.probs.append(probabilities(logits[rows, None], self.law)[:, 0])
        chosen[rows] = draw(self.probs[-1], self.coins[:, slot])
        return chosen if ids is None else ids[chosen]
