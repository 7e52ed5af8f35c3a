"""Prompts in, conversations in the target's own words out: the only text a drafter should be trained on.

Token ids are kept as generated and never rendered again. The output file is the state: a killed run goes on with the
ids it lacks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlite.data.chat import encode, render
from dlite.data.conversations import to_record
from dlite.data.jsonl import JsonlWriter, read_jsonl, trim_torn_line
from dlite.data.prompts import Prompt
from dlite.drafters.base import Drafter
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.engine.stats import is_looping
from dlite.sampling import SamplingParams
from dlite.target.base import Target
from dlite.types import Conversation, Generation

Progress = Callable[[Conversation], None]


@dataclass(frozen=True)
class RegenerateSettings:
    """How answers are generated. ``max_context`` leaves out prompts longer than that many tokens."""

    max_new_tokens: int = 512
    batch: int = 64
    max_context: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prefix_entries: int = 0


@dataclass
class Tally:
    """What a run did."""

    written: int = 0
    tokens: int = 0
    resumed: int = 0
    too_long: int = 0
    truncated: int = 0
    looping: int = 0

    def add(self, conversation: Conversation) -> None:
        """Count a conversation that was written."""
        self.written += 1
        self.tokens += sum(conversation.wrote)
        self.truncated += not conversation.finished
        self.looping += conversation.looping


def regenerate(
    target: Target,
    drafter: Drafter,
    prompts: Iterable[Prompt],
    out: Path,
    settings: RegenerateSettings,
    progress: Progress | None = None,
) -> Tally:
    """Answer every prompt not yet in ``out`` and append it there as it finishes."""
    done, tally = finished_ids(out), Tally()
    prefix = PrefixCache(settings.prefix_entries) if settings.prefix_entries else None
    engine = Engine(target, drafter, max_batch=settings.batch, prefix=prefix)
    open_calls: dict[int, _Open] = {}
    limit = min(settings.max_context or target.info.context_length, target.info.context_length - 1)
    with JsonlWriter(out) as writer:
        for prompt in prompts:
            if prompt.id in done:
                tally.resumed += 1
                continue
            ids = opening_ids(target, prompt)
            if len(ids) > limit:
                tally.too_long += 1
                continue
            done.add(prompt.id)
            _submit(engine, open_calls, _Open(prompt, ids), settings)
            while len(open_calls) >= settings.batch:
                _advance(engine, open_calls, target, settings, writer, tally, progress)
        while open_calls:
            _advance(engine, open_calls, target, settings, writer, tally, progress)
    return tally


def finished_ids(out: Path) -> set[str]:
    """Ids already in an output file, whose torn last line, if any, is cut."""
    trim_torn_line(out)
    if not out.exists() or not out.stat().st_size:
        return set()
    return {str(record.get("id")) for _, record in read_jsonl(out)}


def prompt_seed(seed: int, prompt_id: str) -> int:
    """A prompt's own seed, so that equal prompts are not answered with equal coins."""
    return zlib.crc32(f"{seed}-{prompt_id}".encode())


def opening_ids(target: Target, prompt: Prompt) -> list[int]:
    """Token ids up to the first answer."""
    messages = [*prompt.messages, *({"role": "user", "content": turn} for turn in prompt.turns[:1])]
    return render(target.tokenizer, messages, prompt.tools)


def next_turn_ids(target: Target, text: str) -> list[int]:
    """Token ids that close an answer and open the next one after a user turn, read off the template itself."""
    mark = "\u241fanswer\u241f"
    before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": mark}]
    whole = target.tokenizer.apply_chat_template(
        [*before, {"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return encode(target.tokenizer, whole.split(mark, 1)[1])


@dataclass
class _Open:
    prompt: Prompt
    ids: list[int]
    wrote: list[bool] = field(default_factory=list)
    turn: int = 0


def _submit(engine: Engine, open_calls: dict[int, _Open], call: _Open, settings: RegenerateSettings) -> None:
    sampling = replace(settings.sampling, seed=prompt_seed(settings.sampling.seed, call.prompt.id))
    request = Request(tuple(call.ids), settings.max_new_tokens, sampling=sampling)
    open_calls[engine.submit(request)] = call


def _advance(
    engine: Engine,
    open_calls: dict[int, _Open],
    target: Target,
    settings: RegenerateSettings,
    writer: JsonlWriter,
    tally: Tally,
    progress: Progress | None,
) -> None:
    engine.step()
    for number in list(engine.finished):
        call, answer = open_calls.pop(number), engine.result(number)
        call.wrote += [False] * (len(call.ids) - len(call.wrote)) + [True] * len(answer.token_ids)
        call.ids += answer.token_ids
        call.turn += 1
        if answer.finish == "stop" and call.turn < len(call.prompt.turns):
            closing = next_turn_ids(target, call.prompt.turns[call.turn])
            if call.ids[-1] == closing[0]:  # the template writes the stop token that the target already wrote
                closing = closing[1:]
            if len(call.ids) + len(closing) < target.info.context_length:
                call.ids += closing
                _submit(engine, open_calls, call, settings)
                continue
        conversation = _close(call, answer)
        writer.write(to_record(conversation))
        tally.add(conversation)
        if progress:
            progress(conversation)


def _close(call: _Open, answer: Generation) -> Conversation:
    return Conversation(
        call.prompt.id,
        call.prompt.source,
        tuple(call.ids),
        tuple(call.wrote),
        finished=answer.finish == "stop",
        looping=is_looping(answer.token_ids),
    )
