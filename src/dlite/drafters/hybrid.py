"""Copies where a copy promises more than a model, drafts with the model elsewhere: the hybrid of SuffixDecoding (2411.04975).

Both promises are numbers of accepted drafts: the score of the copy, and for the model a running average over its rounds
in this request: of the sum of survivals a_i where it states its confidence, else of the drafts it got accepted. The
model's confidence in this very round is no way to choose: it has seen the drafts that the choice would drop, and the
output would no longer follow the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import isnan, nan
from operator import mul
from typing import Any

import torch
from torch import Tensor

from dlite.drafters import load_drafter
from dlite.drafters.base import About, Chooser, Drafter, Memory
from dlite.drafters.suffix import Suffix, SuffixMemory
from dlite.drafters.text import certain
from dlite.target.base import Target
from dlite.types import Proposal, View

PRIOR = 1.0  # drafts that a model's round is expected to get accepted before any was seen
RATE = 1 / 8  # weight of the newest round in the running average


class Hybrid:
    """``suffix`` and a model, round by round and request by request. The model runs for the requests that need it."""

    name = "hybrid"
    about = About(
        context="text",
        head="copy, or the model's",
        paper="arXiv 2411.04975",
        state="suffix's and the model's",
    )

    def __init__(self, model: Drafter, suffix: Suffix | None = None) -> None:
        self.model, self.suffix = model, suffix or Suffix()
        self.taps = model.taps
        self.max_drafts = max(model.max_drafts, self.suffix.max_drafts)
        self.rests = model.name

    @staticmethod
    def for_target(target: Target, argument: str = "") -> Hybrid:
        """``hybrid:MODEL`` with a drafter's folder or name; ``hybrid`` alone takes the drafter that ships for the target."""
        return Hybrid(load_drafter(argument or "shipped", target))

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """Each request's better promise."""
        memory: HybridMemory = view.memory
        paths = self.suffix.paths(view.select(range(len(counts)), memory.text), counts)
        copied = [path.score > memory.expected[row] for path, row in zip(paths, view.rows, strict=True)]
        drafts = [list(path.tokens) if copy else [] for path, copy in zip(paths, copied, strict=True)]
        source = ["suffix" if copy else "" for copy in copied]
        chances = [list(path.chances) if copy else [] for path, copy in zip(paths, copied, strict=True)]
        resting = view.resting or [False] * len(counts)
        wanted = [0 if rest else min(n, self.model.max_drafts) for n, rest in zip(counts, resting, strict=True)]
        index = [b for b, copy in enumerate(copied) if not copy and wanted[b]]
        if index:
            part = view.select(index, memory.model)
            made = self.model.propose(part, [wanted[b] for b in index], chooser.select(index))
            stated = torch.full(made.tokens.shape, nan) if made.confidence is None else made.confidence
            made_rows = zip(index, made.tokens.tolist(), stated.tolist(), made.num_tokens.tolist(), strict=True)
            for b, row, confidence, count in made_rows:
                drafts[b], chances[b] = row[:count], confidence[:count]
                source[b] = self.model.name if count else ""
        memory.pending = {view.rows[b]: survived(chances[b]) for b in index if source[b]}
        return certain(drafts, view.anchor, source, chances)

    def new_memory(self, rows: int) -> HybridMemory:
        """That of both parts."""
        return HybridMemory(self.suffix.new_memory(rows), self.model.new_memory(rows), rows)

    def state_bytes(self, context: int) -> int:
        """That of both parts."""
        return self.suffix.state_bytes(context) + self.model.state_bytes(context)


def survived(confidence: Sequence[float]) -> float:
    """Drafts expected to be accepted, the sum of survivals; NaN where the confidence is."""
    return float(sum(accumulate(confidence, mul)))


class HybridMemory:
    """Both parts' memories, and what the model's rounds of each request promised or got accepted: a running average.

    It starts from ``PRIOR`` anew when a request is resumed or a prefix restored, so that drafts may differ there.
    """

    def __init__(self, text: SuffixMemory, model: Memory | None, rows: int) -> None:
        self.text, self.model = text, model
        self.overlap = model.overlap if model else 0
        self.expected = [PRIOR] * rows
        self.pending: dict[
            int, float
        ] = {}  # rows whose drafts of this round are the model's, and what it expects of them

    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """Both parts see every position, whoever proposed it."""
        for memory in self._parts():
            memory.observe(first, tokens, taps, kept)
        for row, count in enumerate(kept, start=first):
            if row in self.pending:
                promised = self.pending.pop(row)
                self.expected[row] += RATE * ((count - 1 if isnan(promised) else promised) - self.expected[row])

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row."""
        for memory in self._parts():
            memory.clear(row, tokens, prompt)
        self.expected[row] = PRIOR

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        for memory in self._parts():
            memory.move(source, row)
        self.expected[row] = self.expected[source]

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""
        return sum(memory.bytes(row) for memory in self._parts())

    def export(self, row: int, length: int) -> list[Any]:
        """What both parts need."""
        return [memory.export(row, length) for memory in self._parts()]

    def restore(self, row: int, saved: list[Any], length: int) -> None:
        """Both parts."""
        for memory, own in zip(self._parts(), saved, strict=True):
            memory.restore(row, own, length)

    def _parts(self) -> list[Memory]:
        return [self.text, self.model] if self.model else [self.text]
