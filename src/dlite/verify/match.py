"""Keep drafts while each equals the target's own choice. With argmax choices this is greedy verification."""

from __future__ import annotations

from torch import Tensor

from dlite.types import Proposal, Verdict


def match(own: Tensor, draft: Proposal) -> Verdict:
    """Keep the prefix that agrees with ``own``; the next token is the target's own choice after it.

    own [B,K+1] the target's argmax, or an independent sample of p, at each position   draft.tokens [B,K]
    """
    K = draft.tokens.shape[1]
    same = (draft.tokens == own[:, :K]) & counted(draft)
    accepted = same.long().cumprod(1).sum(1)
    return Verdict(accepted, own.gather(1, accepted[:, None]).squeeze(1))


def counted(draft: Proposal) -> Tensor:
    """True where a draft slot holds a draft: [B,K]."""
    slots = draft.num_tokens.new_tensor(range(draft.tokens.shape[1]))
    return slots[None, :] < draft.num_tokens[:, None]
