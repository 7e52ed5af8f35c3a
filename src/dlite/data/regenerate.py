"""Prompts in, conversations in the target's own words out: the only text a drafter should be trained on.

Token ids are kept as generated and never rendered again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dlite.data.answers import Answers, Progress, Tally
from dlite.data.dialogue import Dialogue
from dlite.data.prompts import Prompt
from dlite.drafters.base import Drafter
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.sampling import SamplingParams
from dlite.target.base import Target


@dataclass(frozen=True)
class RegenerateSettings:
    """How answers are generated.

    ``max_context`` leaves out prompts longer than that many tokens. ``prefix_bytes`` bounds the memory for key-values
    kept because another prompt may begin alike.
    """

    max_new_tokens: int = 512
    batch: int = 64
    max_context: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prefix_bytes: int = 2 << 30

    def made(self, target: str, tokenizer_hash: str) -> dict[str, Any]:
        """What every record says of how its answer was made."""
        return {
            "target": target,
            "tokenizer_hash": tokenizer_hash,
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.sampling.temperature,
            "seed": self.sampling.seed,
        }

    def sampling_of(self, prompt: Prompt) -> SamplingParams:
        """The sampling with a seed of the prompt's own, so that equal prompts are not answered with equal coins."""
        return replace(self.sampling, seed=zlib.crc32(f"{self.sampling.seed}-{prompt.id}".encode()))

    def limit(self, context: int) -> int:
        """The longest prompt that is answered by a target with this context."""
        return min(context - 1 if self.max_context is None else self.max_context, context - 1)


def regenerate(
    target: Target,
    drafter: Drafter,
    prompts: Iterable[Prompt],
    out: Path,
    settings: RegenerateSettings,
    progress: Progress | None = None,
) -> Tally:
    """Answer every prompt not yet in ``out`` and append it there as it finishes."""
    prompts, info = list(prompts), target.info
    entries = prefix_entries(target, drafter, prompts, settings)
    prefix = PrefixCache(entries) if entries else None
    engine = Engine(target, drafter, max_batch=settings.batch, prefix=prefix)
    running: dict[int, Dialogue] = {}
    with Answers(out, settings.made(info.name, info.tokenizer_hash), progress) as answers:
        for dialogue in answers.missing(prompts, target.tokenizer, settings.limit(info.context_length)):
            _submit(engine, running, dialogue, settings)
            while len(running) >= settings.batch:
                _advance(engine, running, answers, settings)
        while running:
            _advance(engine, running, answers, settings)
    return answers.tally


def prefix_entries(target: Target, drafter: Drafter, prompts: Sequence[Prompt], settings: RegenerateSettings) -> int:
    """How many sequences may be kept: as many as can be of use, if all of the longest possible fit ``prefix_bytes``.

    None are of use where no conversation has several turns: such prompts share at most a system prompt.
    """
    turns = any(len(p.turns) > 1 for p in prompts)
    if not turns and all(len(p.messages) <= 2 and p.trace is None for p in prompts):
        return 0
    info, layer = target.info, target.info.layer
    longest = info.context_length
    if not turns:
        longest = min(longest, settings.limit(longest) + settings.max_new_tokens)
    position = 2 * info.num_layers * layer.num_kv_heads * layer.head_dim * target.dtype.itemsize
    return min(settings.batch + 1, settings.prefix_bytes // (position * longest + drafter.state_bytes(longest)))


def _submit(engine: Engine, running: dict[int, Dialogue], dialogue: Dialogue, settings: RegenerateSettings) -> None:
    sampling = settings.sampling_of(dialogue.prompt)
    request = Request(tuple(dialogue.ids), settings.max_new_tokens, sampling=sampling)
    running[engine.submit(request)] = dialogue


def _advance(engine: Engine, running: dict[int, Dialogue], answers: Answers, settings: RegenerateSettings) -> None:
    engine.step()
    target = engine.target
    for number in list(engine.finished):
        dialogue, answer = running.pop(number), engine.result(number)
        dialogue.add_answer(answer.token_ids)
        finished = answer.finish == "stop"
        if finished and dialogue.next_turn(target.tokenizer, target.info.context_length):
            _submit(engine, running, dialogue, settings)
        else:
            answers.write(dialogue, finished=finished)
