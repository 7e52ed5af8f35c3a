"""Block verification (2403.10444): accept the whole prefix jointly; never fewer tokens than `rejection` on average."""

from __future__ import annotations

import torch
from torch import Tensor

from dlite.sampling import draw
from dlite.types import Proposal, Verdict
from dlite.verify.rejection import draft_probs, nonempty


def block(p: Tensor, draft: Proposal, u: Tensor) -> Verdict:
    """Keep the longest prefix whose joint coin passes; then draw from max(weight * p - q, 0), or the bonus from p.

    weight_i = min(1, weight_{i-1} p(x_i) / q(x_i)); prefix i passes when u_i < h_i with
    h_i = S_i / (S_i + 1 - weight_i), S_i = sum_x max(weight_i p_{i+1}(x) - q_{i+1}(x), 0); the last one passes at weight.
    p [B,K+1,V]   draft.tokens [B,K]   draft.probs [B,K,V]   u [B,K+1], the last column draws
    """
    K = draft.tokens.shape[1]
    q = draft_probs(p, draft)
    rows = torch.arange(len(p), device=p.device)
    weight = p.new_ones(len(p))
    accepted = torch.zeros_like(draft.num_tokens)
    residual = (p[:, 0] - q[:, 0]).clamp_min(0)
    for i in range(1, K + 1):
        token = draft.tokens[:, i - 1]
        ratio = p[rows, i - 1, token] / q[rows, i - 1, token].clamp_min(torch.finfo(p.dtype).tiny)
        weight = (weight * ratio).clamp_max(1)
        left = (weight[:, None] * p[:, i] - q[:, i]).clamp_min(0)
        mass = left.sum(1)
        passes = torch.where(draft.num_tokens == i, weight, mass / (mass + 1 - weight).clamp_min(1e-30))
        passes = torch.where((weight == 1) & (mass == 0), 1.0, passes)
        keep = (u[:, i - 1] < passes) & (i <= draft.num_tokens)
        accepted = torch.where(keep, i, accepted)
        residual = torch.where(keep[:, None], left, residual)
    done = accepted == draft.num_tokens
    residual = torch.where(done[:, None], p[rows, accepted], residual)
    return Verdict(accepted, draw(nonempty(residual, p[rows, accepted]), u[:, K]))
