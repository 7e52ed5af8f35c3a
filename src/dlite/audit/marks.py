"""Every token of an answer: who gave it, at which draft position, and what kind of text it is part of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dlite.audit.spans import copied, spans
from dlite.engine.text import TextStream
from dlite.types import Generation

TARGET = "target"


@dataclass(frozen=True)
class Mark:
    """One token. ``position`` is that of the accepted draft it was, 1 to K, or 0 for a token of the target's own.

    ``source`` names the drafter that gave it, of a composed one the part; "target" for the target's own.
    """

    text: str
    position: int
    source: str
    span: str
    copied: bool


def marks(generation: Generation, prompt: Sequence[int], tokenizer: Any, drafter: str) -> list[Mark]:
    """The tokens of an answer in order; ``prompt`` are the ids it answers, ``drafter`` the name of who drafted."""
    ids = generation.token_ids
    pieces = token_texts(tokenizer, ids)
    opening = "".join(token_texts(tokenizer, prompt[-8:]))
    kinds = spans(pieces, thinking=opening.rstrip().endswith("<think>"))
    places, givers = positions(generation), sources(generation, drafter)
    found = zip(pieces, places, givers, kinds, copied(prompt, ids), strict=True)
    return [Mark(*one) for one in found]


def positions(generation: Generation) -> list[int]:
    """The draft position of each token, 0 where the target gave it: the prefill's token, then round after round."""
    found = [0] if generation.token_ids else []
    for one in generation.rounds:
        drafts = range(1, min(one.accepted, one.committed) + 1)
        found += [*drafts, *[0] * (one.committed - len(drafts))]
    return found


def sources(generation: Generation, drafter: str) -> list[str]:
    """Who gave each token: the part of a composed drafter that its round names, else ``drafter``, or the target itself."""
    names = [one.source or drafter for one in generation.rounds for _ in range(one.committed)]
    names = [TARGET, *names] if generation.token_ids else []
    return [name if place else TARGET for name, place in zip(names, positions(generation), strict=True)]


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text, special tokens included; together they are the text."""
    stream = TextStream(_Verbatim(tokenizer))
    pieces = [stream.push(token) for token in ids]
    if pieces:
        pieces[-1] += stream.flush()
    return pieces


def runs(values: Sequence[Any]) -> list[list[Any]]:
    """[value, how often in a row] from start to end."""
    return [[value, sum(1 for _ in group)] for value, group in groupby(values)]


def unrolled(pairs: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The values that ``runs`` put together."""
    for value, count in pairs:
        yield from [value] * count


class _Verbatim:
    """A tokenizer whose special tokens show."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of ids, whatever is asked."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))
