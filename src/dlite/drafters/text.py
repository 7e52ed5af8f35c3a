"""What drafters that read nothing but tokens remember: the text of each request, with an index that grows with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from dlite.types import Proposal


class TextIndex(Protocol):
    """A text and whatever makes it quick to search."""

    ids: list[int]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""

    def bytes(self) -> int:
        """Bytes of the text and its index."""


Index = TypeVar("Index", bound=TextIndex)


class TextMemory(Generic[Index]):
    """One index a request over the tokens the target has computed and, from the first proposal of a round on, the anchor."""

    overlap = 0

    def __init__(self, rows: int, make: Callable[[], Index]) -> None:
        self.make = make
        self.texts = [make() for _ in range(rows)]
        self.seen = [0] * rows  # positions the target has computed

    def read(self, row: int, tokens: Sequence[int]) -> Index:
        """The index of a row, brought up to the whole text ``tokens`` of its request."""
        text = self.texts[row]
        text.extend(tokens[len(text.ids) :])
        return text

    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """Append what stands of tokens [B,R] and is not known yet."""
        for row, (new, count) in enumerate(zip(tokens.tolist(), kept, strict=True), start=first):
            known = len(self.texts[row].ids) - self.seen[row]
            self.texts[row].extend(new[known:count])
            self.seen[row] += count

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row."""
        self.texts[row], self.seen[row] = self.make(), 0

    def move(self, source: int, row: int) -> None:
        """Hand a row's text to another: the engine empties the first one next."""
        self.texts[row], self.seen[row] = self.texts[source], self.seen[source]

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""
        return self.texts[row].bytes()

    def export(self, row: int, length: int) -> list[int]:
        """The tokens; the index is made anew."""
        return self.texts[row].ids[:length]

    def restore(self, row: int, saved: list[int], length: int) -> None:
        """Index the first ``length`` tokens."""
        self.clear(row)
        self.texts[row].extend(saved[:length])
        self.seen[row] = length


def certain(
    drafts: Sequence[Sequence[int]],
    like: Tensor,
    source: Sequence[str] | None = None,
    chances: Sequence[Sequence[float]] | None = None,
) -> Proposal:
    """A proposal of drafts that were chosen for certain, on the device of ``like``, with the confidence in each."""
    longest = max(map(len, drafts))
    tokens = [[*row, *[0] * (longest - len(row))] for row in drafts]
    counts = like.new_tensor([len(row) for row in drafts])
    confidence = None
    if chances is not None:
        padded = [[*row, *[0.0] * (longest - len(row))] for row in chances]
        confidence = torch.tensor(padded, device=like.device).view(len(drafts), longest)
    return Proposal(like.new_tensor(tokens).view(len(drafts), longest), counts, None, confidence, source)
