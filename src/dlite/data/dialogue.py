"""One prompt on its way to a conversation: answer by answer, whoever gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dlite.data.chat import encode, next_turn_ids, render, user
from dlite.data.prompts import Prompt
from dlite.engine.stats import is_looping
from dlite.errors import DataError
from dlite.types import Conversation


def opening_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Token ids up to the first answer."""
    if prompt.ids:
        return list(prompt.ids)
    return render(tokenizer, [*prompt.messages, *map(user, prompt.turns[:1])], prompt.tools)


def only_ids(tokenizer: Any, prompt: Prompt, *, raw: bool) -> list[int]:
    """Token ids of a prompt that asks for one answer; ``raw`` is its text as it stands, without the chat template.

    Errors: ``DataError`` for a prompt of several turns, or of messages where raw text is wanted.
    """
    if len(prompt.turns) > 1:
        raise DataError(
            f"prompt {prompt.id!r} has {len(prompt.turns)} turns. Expected one: only one answer is given here. Give its first "
            "turn alone, or use: dlite regenerate"
        )
    if raw and prompt.messages:
        raise DataError(f"prompt {prompt.id!r} has messages. Expected text to continue. Leave --raw out for a chat.")
    return encode(tokenizer, prompt.turns[0]) if raw and prompt.turns else opening_ids(tokenizer, prompt)


@dataclass
class Dialogue:
    """The ids so far and how many answers they hold; ``wrote[t]`` says that the target wrote ``ids[t]``."""

    prompt: Prompt
    ids: list[int]
    wrote: list[bool] = field(default_factory=list)
    answers: int = 0
    looping: bool = False

    def add_answer(self, tokens: Sequence[int]) -> None:
        """What the target said to everything before."""
        self.wrote += [False] * (len(self.ids) - len(self.wrote)) + [True] * len(tokens)
        self.ids += tokens
        self.answers += 1
        self.looping = is_looping(tokens)

    def next_turn(self, tokenizer: Any, context: int) -> bool:
        """Put the next user turn; False where there is none, or no room for it and a token of its answer."""
        if self.answers >= len(self.prompt.turns):
            return False
        closing = next_turn_ids(tokenizer, self.prompt.turns[self.answers])
        if self.ids[-1] == closing[0]:  # the template writes the stop token that the target already wrote
            closing = closing[1:]
        fits = len(self.ids) + len(closing) < context
        if fits:
            self.ids += closing
        return fits

    def conversation(self, *, finished: bool) -> Conversation:
        """What was said, with ``finished`` as the last answer ended."""
        prompt = self.prompt
        return Conversation(prompt.id, prompt.source, tuple(self.ids), tuple(self.wrote), finished, self.looping)
