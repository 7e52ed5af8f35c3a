"""From logits to the distribution that is verified, and the coins that draw from it.

The same ``shape`` makes p for the target and q for the drafter, in fp32; temperature 0 is a one-hot p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dlite.errors import RequestError

Rule = Literal["rejection", "block", "match"]


@dataclass(frozen=True)
class SamplingParams:
    """How one request turns logits into tokens. The defaults are greedy.

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; repetition_penalty as in CTRL (1909.05858), over
    prompt and output; logit_bias adds to the logits of the named token ids. ``rule`` is how sampled drafts are
    verified; ``seed`` makes the request repeatable whatever else is in its batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    rule: Rule = "rejection"
    seed: int = 0

    def __post_init__(self) -> None:
        checks = [
            (0 <= self.temperature < float("inf"), "temperature", self.temperature, "0 (greedy) or more"),
            (self.top_k >= 0, "top_k", self.top_k, "0 (off) or more"),
            (0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]"),
            (0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]"),
            (self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0"),
            (self.rule in ("rejection", "block", "match"), "rule", self.rule, "rejection, block or match"),
        ]
        for fits, name, found, expected in checks:
            if not fits:
                raise RequestError(f"{name} is {found}. Expected {expected}.")

    @property
    def greedy(self) -> bool:
        """True when the token is the argmax and no coin is needed."""
        return self.temperature == 0

    @property
    def reshapes(self) -> bool:
        """True when the argmax itself may differ from that of the raw logits."""
        return self.repetition_penalty != 1 or bool(self.logit_bias)


def adjust(logits: Tensor, params: SamplingParams, histories: Sequence[Sequence[int]]) -> Tensor:
    """Bias and repetition penalty, fp32: logits [R,V], one token history a row -> [R,V]."""
    logits = logits.float()
    if not params.reshapes:
        return logits
    logits = logits.clone()
    if params.repetition_penalty != 1:
        for row, history in zip(logits, histories, strict=True):
            seen = torch.tensor(sorted(set(history)), dtype=torch.long, device=logits.device)
            values = row[seen]
            row[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    for token, bias in params.logit_bias.items():
        logits[:, token] += bias
    return logits


def shape(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution to sample from: temperature, then top-k, top-p and min-p; logits [R,V] fp32 -> probs [R,V].

    Ties at a cut-off are kept by top-k and min-p and broken by token order in top-p. Temperature 0 gives a one-hot.
    """
    if params.greedy:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    # The best logit becomes 0, so that a tiny temperature neither overflows nor divides by an fp32 zero.
    logits = (logits - logits.amax(-1, keepdim=True)) / max(params.temperature, 1e-30)
    if 0 < params.top_k < logits.shape[-1]:
        floor = logits.topk(params.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    probs = logits.softmax(-1)
    if params.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        beyond = ordered.cumsum(-1) - ordered >= params.top_p
        probs = probs.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), 0)
    if params.min_p > 0:
        probs = probs.masked_fill(probs < params.min_p * probs.amax(-1, keepdim=True), 0)
    return probs / probs.sum(-1, keepdim=True)


def draw(weights: Tensor, coins: Tensor) -> Tensor:
    """Inverse-CDF draw: weights [...,V] not necessarily normalised, coins [...] in [0,1) -> token ids [...]."""
    cumulative = weights.cumsum(-1)
    level = coins.unsqueeze(-1).to(cumulative.dtype) * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, level, right=True).squeeze(-1)
    # level can round up to the total: then the last token with any weight is meant.
    last = weights.shape[-1] - 1 - (weights.flip(-1) > 0).to(torch.uint8).argmax(-1)
    return torch.minimum(tokens, last)


def round_coins(seed: int, purpose: Literal["accept", "draft"], start: int, count: int) -> Tensor:
    """Coins of one round, fresh for every output position ``start`` a round can begin at: [count] fp32 in [0,1).

    Keyed by the round and not by the position they judge: block verification looks at all coins of a round, so one
    that was seen must never be seen again.
    """
    return _uniform(seed, 1 if purpose == "accept" else 2, start, count)


def position_coins(seed: int, start: int, count: int) -> Tensor:
    """The target's own coin for each output position from ``start`` on: [count] fp32 in [0,1).

    The same in every batch and for every K, so `match` verification reproduces plain sampling token for token.
    """
    return torch.cat([_uniform(seed, 0, position, 1) for position in range(start, start + count)])


def _uniform(seed: int, stream: int, start: int, count: int) -> Tensor:
    key = np.array([seed % 2**64, stream], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key, counter=[0, start, 0, 0]))
    return torch.from_numpy(generator.random(count, dtype=np.float32))
