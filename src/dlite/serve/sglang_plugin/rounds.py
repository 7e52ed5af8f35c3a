"""A round without its engine: drafts for each request slot, and what a verification keeps of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dlite.drafters.dlite import DLite
from dlite.serve.drafting import Greedy, draft
from dlite.serve.sglang_plugin.law import Drawing, Law, probabilities
from dlite.types import Proposal, Verdict
from dlite.verify.match import match
from dlite.verify.rejection import rejection

TOGETHER = 8  # sampled requests verified at once: each takes some tensors of (K + 1) * V numbers


class Rounds:
    """All that lies between two rounds: K token ids a slot, and for sampled requests the q they were drawn from.

    ``slots`` [B] are the engine's own places for running requests. Nothing here waits for the device.
    """

    def __init__(self, network: DLite, K: int, slots: int, device: torch.device, seed: int) -> None:
        self.network, self.K = network, K
        self.tokens = torch.zeros(slots, K, dtype=torch.long, device=device)
        self.probs = torch.zeros(slots, K, network.vocab.size, device=device)
        self._coins = torch.Generator(device).manual_seed(seed)

    def draft(self, taps: Tensor, anchor: Tensor, before: Tensor, slots: Tensor, law: Law | None) -> None:
        """Draft for the next round: taps [B,n,D] at the pivots, anchor [B], before [B] the tokens at the pivots."""
        anchor, before = anchor.long(), before.long()
        if law is None:
            self.tokens[slots] = draft(self.network, taps, anchor, before, self.K, Greedy())
            return
        drawing = Drawing(law, self._uniform(len(law.rows), self.K))
        self.tokens[slots] = draft(self.network, taps, anchor, before, self.K, drawing)
        self.probs[slots[list(law.rows)]] = torch.stack(drawing.probs, 1)

    def candidates(self, anchor: Tensor, slots: Tensor) -> Tensor:
        """What the target runs over: anchor [B] and the drafts behind it, [B,K+1]."""
        return torch.cat([anchor.long()[:, None], self.tokens[slots]], 1)

    def verify(self, logits: Tensor, candidates: Tensor, slots: Tensor, law: Law | None) -> Verdict:
        """Hold the target's logits [B,K+1,V] against the drafts: greedily, and sampled requests by rejection."""
        drafts = candidates[:, 1:]
        count = drafts.new_full((len(drafts),), self.K)
        verdict = match(logits.argmax(-1), Proposal(drafts, count))
        for first in range(0, 0 if law is None else len(law.rows), TOGETHER):
            part = law.part(first, first + TOGETHER)  # type: ignore[union-attr]
            rows = list(part.rows)
            q = self._widened(self.probs[slots[rows]], logits.shape[-1])
            one = rejection(
                probabilities(logits[rows], part),
                Proposal(drafts[rows], count[rows], q),
                self._uniform(len(rows), self.K + 1),
            )
            verdict.num_accepted[rows], verdict.next_token[rows] = one.num_accepted, one.next_token
        return verdict

    def _widened(self, q: Tensor, vocab_size: int) -> Tensor:
        """q over the draft vocabulary [S,K,V'] -> over all tokens [S,K,V]."""
        ids = self.network.vocab.ids
        return q if ids is None else q.new_zeros(*q.shape[:2], vocab_size).index_copy_(2, ids, q)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, device=self.tokens.device, generator=self._coins)


def committed(candidates: Tensor, verdict: Verdict) -> Tensor:
    """The accepted drafts and the token behind them, from the left of each row; the rest has no meaning: [B,K+1]."""
    slots = torch.arange(candidates.shape[1], device=candidates.device)
    drafts = torch.cat([candidates[:, 1:], candidates[:, :1]], 1)
    return torch.where(slots < verdict.num_accepted[:, None], drafts, verdict.next_token[:, None])
