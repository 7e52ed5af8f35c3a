"""The values that travel between the parts, and the one legend of shapes.

B requests in a batch     N training blocks     K drafts a round     R rows of one target pass, at most K+1
n taps                    D hidden size         V vocabulary         T tokens of one sequence
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Conversation:
    """Token ids exactly as the target read and wrote them; never rendered again.

    ``wrote[t]`` says that the target itself wrote ``ids[t]``: only such tokens are trained on.
    ``finished`` is False for an answer cut by its length limit, ``looping`` True for degenerate repetition.
    """

    id: str
    source: str
    ids: tuple[int, ...]
    wrote: tuple[bool, ...]
    finished: bool
    looping: bool


@dataclass(frozen=True)
class View:
    """What a drafter may look at when it proposes.

    anchor [B] the newest committed token, not yet run through the target; before [B] the token at the pivot;
    taps [B,n,D] the drafter's target layers at the pivot (n = 0 for a drafter that reads none);
    tokens: per request everything committed so far, anchor last; memory and rows [B]: what the drafter itself
    remembers of these requests, and in which of its rows (None for a drafter without memory); resting: requests for
    which a composed drafter's model is not to run (empty: none).
    """

    anchor: Tensor
    before: Tensor
    taps: Tensor
    tokens: Sequence[Sequence[int]]
    memory: Any = None
    rows: Sequence[int] = ()
    resting: Sequence[bool] = ()

    def select(self, index: Sequence[int], memory: Any) -> View:
        """The requests at these places of the view, with another memory."""
        at = list(index)
        return View(
            self.anchor[at],
            self.before[at],
            self.taps[at],
            [self.tokens[i] for i in at],
            memory,
            [self.rows[i] for i in at],
            [self.resting[i] for i in at] if self.resting else (),
        )


@dataclass(frozen=True)
class Proposal:
    """Drafts of one round, padded to the longest row.

    tokens [B,K]   num_tokens [B] how many of them count
    probs [B,K,V] the very distribution each was drawn from, or None where every draft was chosen for certain
    confidence [B,K] the drafter's own estimate of the chance that draft i is accepted if those before it are, made
    without looking at draft i itself; None from a drafter that does not estimate it, NaN where a part of one does not
    source [B] the drafter each row came from, where several took part ("" for a row without drafts)
    """

    tokens: Tensor
    num_tokens: Tensor
    probs: Tensor | None = None
    confidence: Tensor | None = None
    source: Sequence[str] | None = None


@dataclass(frozen=True)
class Verdict:
    """Outcome of verification: num_accepted [B] drafts kept, next_token [B] recovered or bonus token."""

    num_accepted: Tensor
    next_token: Tensor


@dataclass(frozen=True)
class Round:
    """One draft and one verification of one request.

    ``committed`` counts what reached the output: accepted drafts and the recovered or bonus token, cut at the end.
    ``source`` is the part of a composed drafter that proposed. ``off``: drafting was switched off because it did not pay.
    """

    proposed: int
    accepted: int
    committed: int
    context: int
    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    seconds_other: float = 0.0
    source: str = ""
    off: bool = False


@dataclass(frozen=True)
class Seconds:
    """Where the time of one request went. Shared passes are counted in full for each request in the batch."""

    prefill: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0

    @property
    def decode(self) -> float:
        """Everything after the prefill."""
        return self.draft + self.verify + self.other

    @property
    def total(self) -> float:
        """Prefill and decode."""
        return self.prefill + self.decode


@dataclass(frozen=True)
class Generation:
    """The outcome of one request."""

    text: str
    token_ids: tuple[int, ...]
    finish: str  # "stop" | "length" | "context" | "cancelled"
    rounds: tuple[Round, ...]
    seconds: Seconds
    prompt_tokens: int

    @property
    def tau(self) -> float:
        """Acceptance length over the rounds: see ``tau``."""
        return tau(self.rounds)

    def to_json(self) -> dict[str, Any]:
        """Plain values: what ``dlite generate --json`` prints."""
        seconds = {name: getattr(self.seconds, name) for name in ("prefill", "draft", "verify", "other", "total")}
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "rounds": len(self.rounds),
            "rounds_off": sum(r.off for r in self.rounds),
            "drafts_per_round": drafts_per_round(self.rounds),
            "tau": self.tau,
            "acceptance_by_position": acceptance_by_position(self.rounds),
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
        }


def tau(rounds: Iterable[Round]) -> float:
    """Acceptance length: tokens committed per round, bonus included, cut at the end, prefill's own token excluded.

    Micro-averaged: sum of tokens over sum of rounds. 0 for no rounds. At most K + 1.
    """
    committed = count = 0
    for item in rounds:
        committed += item.committed
        count += 1
    return committed / count if count else 0.0


def drafts_per_round(rounds: Sequence[Round]) -> float:
    """Mean number of drafts verified a round; 0 for no rounds."""
    return sum(r.proposed for r in rounds) / len(rounds) if rounds else 0.0


def acceptance_by_position(rounds: Sequence[Round]) -> list[float]:
    """Entry i - 1: the share of rounds with at least i drafts in which the first i were all accepted."""
    longest = max((r.proposed for r in rounds), default=0)
    shares = []
    for i in range(1, longest + 1):
        tried = [r for r in rounds if r.proposed >= i]
        shares.append(sum(r.accepted >= i for r in tried) / len(tried))
    return shares
