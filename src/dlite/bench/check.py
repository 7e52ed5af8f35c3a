"""Is the output still the target's own? Ids are compared token for token; a first difference must explain itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dlite.engine.prefix import common_prefix
from dlite.sampling import SamplingParams, adjust
from dlite.target.base import Target


@dataclass(frozen=True)
class Difference:
    """The first output position where an arm left plain decoding, and the target's logits for both tokens there.

    ``gap`` is how far the lower of the two lies below the target's best logit. Tokens are None past an end of text.
    """

    position: int
    plain_token: int | None
    arm_token: int | None
    plain_logit: float | None
    arm_logit: float | None
    gap: float | None
    near_tie: bool


@dataclass(frozen=True)
class Check:
    """One comparison of an arm with plain decoding; ``difference`` is None when every id is equal."""

    call: str
    arm: str
    difference: Difference | None

    @property
    def passed(self) -> bool:
        """Equal, or different only from a near-tie on."""
        return self.difference is None or self.difference.near_tie


def compare(
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    sampling: SamplingParams,
    *,
    tie_gap: float,
    prefill_chunk: int,
) -> Difference | None:
    """None for equal ids, else the first difference with the target's logits, computed anew from the common prefix.

    Kernels may round differently for one row and for several, so two tokens whose logits lie within ``tie_gap`` of
    the best may legitimately change places; any other difference means the output is not the target's.
    """
    position = common_prefix(plain, other)
    if position == len(plain) == len(other):
        return None
    if position in (len(plain), len(other)):
        left, right = (ids[position] if position < len(ids) else None for ids in (plain, other))
        return Difference(position, left, right, None, None, None, False)
    context = [*prompt, *plain[:position]]
    logits = adjust(logits_after(target, context, prefill_chunk)[None], sampling, [context])[0]
    left_logit, right_logit = float(logits[plain[position]]), float(logits[other[position]])
    gap = float(logits.max()) - min(left_logit, right_logit)
    return Difference(position, plain[position], other[position], left_logit, right_logit, gap, gap <= tie_gap)


def logits_after(target: Target, ids: Sequence[int], prefill_chunk: int) -> Tensor:
    """The target's fp32 logits [V] behind ``ids``, from a fresh cache."""
    cache = target.new_cache(1, len(ids))
    for begin in range(0, len(ids), prefill_chunk):
        chunk = torch.tensor([ids[begin : begin + prefill_chunk]])
        output = target.forward(chunk, cache, 0, (), "last")
        cache.lengths[0] += chunk.shape[1]
    return output.logits[0, -1].float()
