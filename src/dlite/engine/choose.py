"""Tokens from logits under each request's settings, on the draft side and on the target side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlite.engine.request import Active
from dlite.sampling import adjust, draw, position_coins, round_coins, shape
from dlite.types import Proposal, Verdict
from dlite.verify.block import block
from dlite.verify.match import match
from dlite.verify.rejection import rejection

RULES = {"rejection": rejection, "block": block}


class BatchChooser:
    """Chooses draft tokens for a batch and keeps the q each sampled draft came from."""

    def __init__(self, batch: Sequence[Active], vocab_size: int) -> None:
        self.batch = batch
        self.vocab_size = vocab_size
        self.chosen: list[Tensor] = []
        self.probs: dict[int, list[Tensor]] = {
            b: [] for b, row in enumerate(batch) if needs_q(row)
        }  # per sampled row, one [V] a slot

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """Greedy rows take the argmax; sampled rows draw with their own coin, and their q is kept."""
        best = logits.argmax(-1)
        tokens = best if ids is None else ids[best]
        for b, row in enumerate(self.batch):
            sampling = row.request.sampling
            if not sampling.reshapes and b not in self.probs:
                continue
            history = [*row.tokens, *(int(t[b]) for t in self.chosen)]
            full = adjust(self._widen(logits[b : b + 1], ids), sampling, [history])
            if b in self.probs:
                q = shape(full, sampling)[0]
                self.probs[b].append(q)
                coin = round_coins(sampling.seed, "draft", len(row.tokens), slot + 1)[-1]
                tokens[b] = draw(q, coin.to(q.device))
            else:
                tokens[b] = full[0].argmax()
        self.chosen.append(tokens)
        return tokens

    def select(self, index: Sequence[int]) -> BatchChooser:
        """A chooser for some of the requests; the q of their drafts is kept here too."""
        part = BatchChooser([self.batch[i] for i in index], self.vocab_size)
        part.probs = {place: self.probs[i] for place, i in enumerate(index) if i in self.probs}
        return part

    def _widen(self, logits: Tensor, ids: Tensor | None) -> Tensor:
        if ids is None:
            return logits
        return logits.new_full((len(logits), self.vocab_size), -torch.inf).index_copy(1, ids, logits)


def needs_q(row: Active) -> bool:
    """True when the request's rule compares p with the q its drafts were drawn from."""
    return not row.request.sampling.greedy and row.request.sampling.rule != "match"


def verify(logits: Tensor, proposal: Proposal, chooser: BatchChooser) -> Verdict:
    """Hold the target's logits [B,K+1,V] against the drafts, each row by its own rule."""
    own = logits.argmax(-1)
    verdict = match(own, proposal)
    for b, row in enumerate(chooser.batch):
        if row.request.sampling.greedy and not row.request.sampling.reshapes:
            continue
        one = _verify_row(logits[b], proposal, b, row, chooser)
        verdict.num_accepted[b], verdict.next_token[b] = one.num_accepted[0], one.next_token[0]
    return verdict


def _verify_row(logits: Tensor, proposal: Proposal, b: int, row: Active, chooser: BatchChooser) -> Verdict:
    count = int(proposal.num_tokens[b])
    drafts = proposal.tokens[b, :count]
    sampling, start = row.request.sampling, len(row.tokens)
    histories = [[*row.tokens, *drafts[:i].tolist()] for i in range(count + 1)]
    p = shape(adjust(logits[: count + 1], sampling, histories), sampling)
    u = position_coins(sampling.seed, start, count + 1).to(p.device)
    draft = Proposal(drafts[None], proposal.num_tokens[b : b + 1])
    if sampling.greedy or sampling.rule == "match":
        return match(draw(p, u)[None], draft)
    if chooser.probs.get(b) and count:
        draft = Proposal(draft.tokens, draft.num_tokens, torch.stack(chooser.probs[b])[None, :count])
    keep = round_coins(sampling.seed, "accept", start, count).to(p.device)
    return RULES[sampling.rule](p[None], draft, torch.cat([keep, u[:1]])[None])


def first_token(logits: Tensor, row: Active) -> int:
    """The token the prefill's logits [V] give."""
    sampling = row.request.sampling
    p = adjust(logits[None], sampling, [row.tokens])
    if sampling.greedy:
        return int(p.argmax(-1))
    u = position_coins(sampling.seed, len(row.tokens), 1).to(p.device)
    return int(draw(shape(p, sampling), u))
