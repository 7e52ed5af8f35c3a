"""Speculative sampling (2211.17192, 2302.01318): the output follows p exactly, whatever drew the drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from dlite.sampling import draw
from dlite.types import Proposal, Verdict
from dlite.verify.match import counted


def rejection(p: Tensor, draft: Proposal, u: Tensor) -> Verdict:
    """Keep drafts while u * q < p; then draw from max(p - q, 0), or the bonus from p if all were kept.

    p [B,K+1,V]   draft.tokens [B,K]   draft.probs [B,K,V]   u [B,K+1], the last column draws
    """
    K = draft.tokens.shape[1]
    q = draft_probs(p, draft)
    p_token = p[:, :K].gather(2, draft.tokens[..., None]).squeeze(2)
    q_token = q[:, :K].gather(2, draft.tokens[..., None]).squeeze(2)
    keep = (u[:, :K] * q_token < p_token) & counted(draft)
    accepted = keep.long().cumprod(1).sum(1)
    rows = torch.arange(len(accepted), device=p.device)
    residual = (p[rows, accepted] - q[rows, accepted]).clamp_min(0)
    return Verdict(accepted, draw(nonempty(residual, p[rows, accepted]), u[:, K]))


def nonempty(residual: Tensor, p: Tensor) -> Tensor:
    """The residual, or p where rounding left nothing of it (q a step above p), so that only p's tokens are drawn."""
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)


def draft_probs(p: Tensor, draft: Proposal) -> Tensor:
    """q padded to p's shape: zero behind the last draft, so that the residual there is p itself; [B,K+1,V]."""
    q = torch.zeros_like(p)
    K = draft.tokens.shape[1]
    if draft.probs is None:
        q[:, :K].scatter_(2, draft.tokens[..., None], 1)
    else:
        q[:, :K] = draft.probs
    q[:, :K] *= counted(draft)[..., None]
    return q
