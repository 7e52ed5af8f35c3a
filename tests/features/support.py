"""Conversations in a target's own greedy words, and their capture."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dlite.engine.request import Request
from dlite.features.capture import CaptureSettings
from dlite.target.base import Target
from dlite.target.toy import ToyTarget
from dlite.types import Conversation
from tests.support import plain

TOY = ToyTarget(stop=False)
SETTINGS = CaptureSettings(taps=(0, 2, 5), K=3)


def conversation(target: Target, name: str, answers: Sequence[int] = (12,), *, prompt: int = 5) -> Conversation:
    """Random user tokens and a greedy answer of each given length, turn by turn."""
    dice = random.Random(name)
    ids: list[int] = []
    wrote: list[bool] = []
    for length in answers:
        asked = [dice.randrange(1, target.info.vocab_size) for _ in range(prompt + dice.randrange(3))]
        answer = plain(target, [Request((*ids, *asked), length)])[0].token_ids
        ids += [*asked, *answer]
        wrote += [False] * len(asked) + [True] * len(answer)
    return Conversation(name, "toy", tuple(ids), tuple(wrote), finished=True, looping=False)


def several(count: int, answers: Sequence[int] = (12,)) -> list[Conversation]:
    """Conversations with the toy target."""
    return [conversation(TOY, f"c{i}", answers) for i in range(count)]
