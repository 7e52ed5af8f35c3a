"""SuffixDecoding (2411.04975): copies what followed the end of the text before, in this request or in earlier answers.

How far it copies depends on the length of the match and on how often the same thing followed; see ``suffixes``.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlite.drafters.base import About, Chooser
from dlite.drafters.suffixes import DEPTH, Path, Suffixes
from dlite.drafters.text import TextMemory, certain
from dlite.errors import DliteError
from dlite.target.base import Target
from dlite.types import Proposal, View

PAST_TOKENS = 65_536
TOKEN_BYTES = 620  # of text and states, about: measured on text and code; up to 1000 in the worst case


class Past:
    """Outputs of requests that are over, at most ``budget`` tokens, in two halves: when the newer half is full, the older
    is dropped.
    """

    def __init__(self, budget: int) -> None:
        self.half = budget // 2
        self.newer, self.older = Suffixes(), Suffixes()

    def add(self, output: Sequence[int]) -> None:
        """Take in an output, or its end if it is longer than a half."""
        output = output[max(0, len(output) - self.half + 1) :]
        if not output or self.half < 2:
            return
        if len(self.newer.ids) + len(output) + 1 > self.half:
            self.newer, self.older = Suffixes(), self.newer
        self.newer.extend([*output, -1 - len(self.newer.ids)])  # each end is a token of its own, so nothing spans it


class SuffixMemory(TextMemory[Suffixes]):
    """The requests' own texts, and past outputs.

    Past outputs are what makes later requests draft better: with them (``budget`` > 0) drafts depend on what the engine
    has finished before. They never change what is accepted.
    """

    def __init__(self, rows: int, budget: int) -> None:
        super().__init__(rows, Suffixes)
        self.past = Past(budget)

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row; the output of a request that is over joins the past ones."""
        super().clear(row)
        self.past.add(tokens[prompt:])

    def best(self, row: int, tokens: Sequence[int], K: int) -> Path:
        """The better-scored drafts, the request's own text first."""
        trees = (self.read(row, tokens), self.past.newer, self.past.older)
        return max((tree.best(tokens[-DEPTH:], K) for tree in trees), key=lambda path: path.score)


class Suffix:
    """Copies; every draft is chosen for certain. ``past_tokens`` bounds the past outputs it keeps."""

    name = "suffix"
    taps: tuple[int, ...] = ()
    about = About(context="text", head="copy of what followed most often", paper="arXiv 2411.04975")

    def __init__(self, past_tokens: int = PAST_TOKENS, K: int = DEPTH // 2) -> None:
        self.past_tokens, self.max_drafts = past_tokens, K

    @staticmethod
    def for_target(target: Target, argument: str = "") -> Suffix:
        """``suffix``, or ``suffix:TOKENS`` to say how many tokens of past outputs are kept. Errors: ``DliteError``."""
        if not argument:
            return Suffix()
        if not argument.isdecimal():
            raise DliteError(
                f"suffix:{argument} does not say how many tokens of past outputs to keep. Expected a number, as in suffix:0."
            )
        return Suffix(int(argument))

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """The best path of each request; nothing where its end is new. The confidence in a draft is how often it followed
        those before it."""
        paths = self.paths(view, counts)
        return certain([path.tokens for path in paths], view.anchor, chances=[path.chances for path in paths])

    def paths(self, view: View, counts: Sequence[int]) -> list[Path]:
        """Drafts with their scores, a request each."""
        memory: SuffixMemory = view.memory
        return [memory.best(*one) for one in zip(view.rows, view.tokens, counts, strict=True)]

    def new_memory(self, rows: int) -> SuffixMemory:
        """An empty one."""
        return SuffixMemory(rows, self.past_tokens)

    def state_bytes(self, context: int) -> int:
        """The request's own text and states. Past outputs are shared and come on top."""
        return TOKEN_BYTES * context
