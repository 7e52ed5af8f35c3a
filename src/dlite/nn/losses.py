"""Training losses as (sum, weight) pairs, so that batches of any make-up share one denominator. fp32 inside."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class LossSum:
    """A weighted sum and its weight; the loss is ``sum / weight`` over all ranks and accumulation steps."""

    sum: Tensor
    weight: Tensor


def position_weights(K: int, gamma: float, counted: Tensor) -> Tensor:
    """w_i = exp(-(i-1)/gamma) for the first ``counted[b]`` positions, 0 behind: counted [N] -> [N,K]."""
    steps = torch.arange(K, device=counted.device)
    return torch.exp(-steps / gamma) * (steps < counted[:, None])


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> LossSum:
    """sum_i w_i CE_i: logits [M,V], labels [M], weights [M]."""
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    return LossSum((losses * weights).sum(), weights.sum())


def forward_kl(logits: Tensor, target_logits: Tensor, weights: Tensor) -> LossSum:
    """sum_i w_i KL(p || q_i), T = 1: logits and target_logits [M,V], weights [M]."""
    log_p = target_logits.float().log_softmax(-1)
    losses = (log_p.exp() * (log_p - logits.float().log_softmax(-1))).sum(-1)
    return LossSum((losses * weights).sum(), weights.sum())


def l1_distance(logits: Tensor, target_logits: Tensor, weights: Tensor) -> LossSum:
    """sum_i w_i ||p - q_i||_1, without the factor 1/2 (2610.23787, Eq. of the stable stage)."""
    losses = (target_logits.float().softmax(-1) - logits.float().softmax(-1)).abs().sum(-1)
    return LossSum((losses * weights).sum(), weights.sum())


def acceptance(logits: Tensor, target_logits: Tensor) -> Tensor:
    """The chance that each draft is accepted, sum min(p, q) = 1 - ||p - q||_1 / 2: logits [...,V] -> [...]."""
    p, q = target_logits.float().softmax(-1), logits.float().softmax(-1)
    return torch.minimum(p, q).sum(-1)


def prefix_acceptance(accepted: Tensor) -> Tensor:
    """The chance that all drafts before each one are accepted: accepted [N,K] -> [N,K], the first of each row 1."""
    return torch.cat([torch.ones_like(accepted[:, :1]), accepted[:, :-1].cumprod(1)], 1)


def expected_rounds(accepted: Tensor, counted: Tensor) -> LossSum:
    """Rounds a token, K / (1 + sum_i prod_{j<=i} a_j) summed over blocks, each weighing its positions.

    accepted [N,K] chances; counted [N,K] 1 where a position is supervised, a prefix of each row.
    """
    length = 1 + (accepted.cumprod(1) * counted).sum(1)
    positions = counted.sum(1)
    return LossSum((positions / length).sum(), positions.sum())


def acceptance_entropy(confidence: Tensor, logits: Tensor, target_logits: Tensor, weights: Tensor) -> LossSum:
    """sum_i w_i BCE(c_i, 1 - ||p - q_i||_1 / 2), the chance that draft i is accepted; q is not trained by it.

    confidence [M] logits of that chance (2607.05147); logits and target_logits [M,V].
    """
    accepted = acceptance(logits.detach(), target_logits)
    losses = F.binary_cross_entropy_with_logits(confidence.float(), accepted.clamp(0, 1), reduction="none")
    return LossSum((losses * weights).sum(), weights.sum())


def candidate_entropy(scores: Tensor, rows: Tensor, labels: Tensor, weights: Tensor) -> LossSum:
    """sum_i w_i CE of the label among candidates: scores and rows [M,C], labels [M]; 0 where it is not one of them."""
    hit = rows == labels[:, None]
    losses = -(scores.float().log_softmax(-1) * hit).sum(-1)
    return LossSum((losses * weights).sum(), weights.sum())
