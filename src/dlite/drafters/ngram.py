"""N-gram drafting, also called prompt lookup: what followed the last tokens when they stood in the text before.

The last 3 tokens are looked up in the prompt and output so far, then the last 2, then the last one; the drafts are what
followed their most recent occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof

from dlite.drafters.base import About, Chooser
from dlite.drafters.text import TextMemory, certain
from dlite.types import Proposal, View

SIZES = (3, 2, 1)
TOKEN_BYTES = 240  # of text and index, about: measured on text and code; up to 700 where nothing repeats


class NGramIndex:
    """Where each n-gram of a text was last followed by something."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.following: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. An n-gram is noted once the token behind it is known."""
        for token in tokens:
            end = len(self.ids)
            for size in SIZES:
                if size <= end:
                    self.following[tuple(self.ids[end - size :])] = end
            self.ids.append(token)

    def continuation(self, K: int) -> list[int]:
        """Up to K tokens that followed the longest n-gram at the end."""
        for size in SIZES:
            start = self.following.get(tuple(self.ids[-size:]))
            if start is not None:
                return self.ids[start : start + K]
        return []

    def bytes(self) -> int:
        """Bytes of the text and the index."""
        entries = sum(getsizeof(key) + getsizeof(start) for key, start in self.following.items())
        return getsizeof(self.ids) + 28 * len(self.ids) + getsizeof(self.following) + entries


class NGram:
    """Copies; every draft is chosen for certain."""

    name = "ngram"
    taps: tuple[int, ...] = ()
    about = About(context="text", head="copy of what followed last", paper="prompt lookup (Saxena 2023)")

    def __init__(self, K: int = 7) -> None:
        self.max_drafts = K

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """What followed; nothing where no n-gram is known."""
        memory: TextMemory[NGramIndex] = view.memory
        texts = [memory.read(row, tokens) for row, tokens in zip(view.rows, view.tokens, strict=True)]
        return certain([text.continuation(count) for text, count in zip(texts, counts, strict=True)], view.anchor)

    def new_memory(self, rows: int) -> TextMemory[NGramIndex]:
        """An index a request."""
        return TextMemory(rows, NGramIndex)

    def state_bytes(self, context: int) -> int:
        """The text and its index."""
        return TOKEN_BYTES * context
