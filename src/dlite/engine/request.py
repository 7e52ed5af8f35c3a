"""A request and its life while it is decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from dlite.errors import RequestError
from dlite.sampling import SamplingParams
from dlite.target.base import TargetInfo
from dlite.types import Generation, Round, Seconds


@dataclass(frozen=True)
class Request:
    """What to continue and how. ``K`` drafts a round at most; None is all the drafter can."""

    ids: tuple[int, ...]
    max_new_tokens: int = 256
    K: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_strings: tuple[str, ...] = ()
    stop_ids: frozenset[int] | None = None  # None: the target's own


def check(request: Request, info: TargetInfo, max_drafts: int) -> None:
    """Refuse what cannot be served, in one clear sentence."""
    if not request.ids:
        raise RequestError("the prompt is empty. Expected at least one token. Give some text.")
    if len(request.ids) >= info.context_length:
        raise RequestError(
            f"the prompt has {len(request.ids)} tokens. {info.name} has a context of {info.context_length}, so at most "
            f"{info.context_length - 1} fit with one new token. Shorten the prompt."
        )
    bad = [t for t in request.ids if not 0 <= t < info.vocab_size]
    if bad:
        raise RequestError(
            f"token id {bad[0]} is not in {info.name}'s vocabulary of {info.vocab_size}. Use this target's tokenizer."
        )
    if request.max_new_tokens < 1:
        raise RequestError(f"max_new_tokens is {request.max_new_tokens}. Expected 1 or more.")
    if "" in request.stop_strings:
        raise RequestError("a stop string is empty. Expected at least one character. Leave it out.")
    odd = [t for t in request.sampling.logit_bias if not 0 <= t < info.vocab_size]
    if odd:
        raise RequestError(
            f"logit_bias names token id {odd[0]}. {info.name} has token ids 0 to {info.vocab_size - 1}. Correct the id."
        )
    if request.K is not None and max_drafts == 0:
        raise RequestError(f"K is {request.K}, but the drafter 'none' makes no drafts. Leave K out.")
    if request.K is not None and not 0 < request.K <= max_drafts:
        raise RequestError(
            f"K is {request.K}. This drafter proposes 1 to {max_drafts} drafts a round. For plain decoding use the "
            "drafter 'none'."
        )


@dataclass
class Active:
    """A request in a batch row: everything that changes from round to round."""

    id: int
    request: Request
    tokens: list[int]
    sink: Callable[[Event], None] | None = None
    pivot: Tensor | None = None  # [n,D], taps at the pivot: all a history-free drafter needs
    rounds: list[Round] = field(default_factory=list)
    seconds: Seconds = field(default_factory=Seconds)
    text: str = ""
    sent: int = 0  # characters of it that the sink has seen
    stream: Any = None
    finish: str | None = None
    cancelled: bool = False
    pace: Any = None  # what the scheduler has learned of this request

    @property
    def produced(self) -> int:
        """Tokens of the output so far."""
        return len(self.tokens) - len(self.request.ids)

    def room(self, context_length: int) -> int:
        """How many tokens may still be committed."""
        return min(self.request.max_new_tokens - self.produced, context_length - len(self.tokens))

    def generation(self) -> Generation:
        """The outcome so far."""
        return Generation(
            text=self.text,
            token_ids=tuple(self.tokens[len(self.request.ids) :]),
            finish=self.finish or "cancelled",
            rounds=tuple(self.rounds),
            seconds=self.seconds,
            prompt_tokens=len(self.request.ids),
        )


@dataclass(frozen=True)
class Event:
    """New tokens of one request: how many of them were accepted drafts (they come first), and text that is settled.

    ``pieces`` holds a (text, accepted draft?) for each token; all pieces together are the final text. The last event
    names the finish, also after a cancel.
    """

    request: int
    token_ids: tuple[int, ...]
    accepted: int
    pieces: tuple[tuple[str, bool], ...]
    finish: str | None
