"""Which turns a drafter learns from and which it is judged on: a conversation is wholly on one side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from dlite.audit.report import Reading
from dlite.audit.turns import Choice, Turn, choose_turns
from dlite.errors import ConfigError, DataError
from dlite.target.base import Target
from dlite.traces.read import read_traces
from dlite.traces.render import mismatches, renderer
from dlite.traces.sample import sample
from dlite.traces.skipped import Skipped
from dlite.traces.trace import Trace

LEAST_LEARN, LEAST_JUDGE = 16, 8  # calls: below these a figure says nothing
OPENING = 2000  # characters of a long text's question that tell one text from another


@dataclass(frozen=True)
class SplitSettings:
    """``held_out`` is the share of the conversations that is only judged on, where none are given apart."""

    max_calls: int = 400
    held_out_calls: int = 40
    turns_per_trace: int = 4
    held_out: float = 0.2
    max_new_tokens: int = 128
    max_context: int | None = None
    plain: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Split:
    """Turns to learn from, turns to be judged on, and how they were read."""

    learn: tuple[Turn, ...]
    judge: tuple[Turn, ...]
    reading: Reading


def split_turns(target: Target, sources: Sequence[str], apart: Sequence[str], settings: SplitSettings) -> Split:
    """Turns of the sources; those of ``apart``, if there are any, are the ones judged on. Errors: ``DataError`` for too few."""
    if not 0 < settings.held_out < 1:
        raise ConfigError(f"the held-out share is {settings.held_out}. Expected more than 0 and less than 1.")
    if settings.max_new_tokens < 2:
        raise ConfigError(f"max_new_tokens is {settings.max_new_tokens}. Expected 2 or more. Raise it.")
    rendering, skipped = renderer(target.tokenizer, plain=settings.plain), Skipped()
    layouts: Counter[str] = Counter()
    both = settings.max_calls + (0 if apart else settings.held_out_calls)
    traces = sample(_read(sources, skipped, layouts), both, settings.seed)
    if apart:
        judged = sample(_read(apart, skipped, layouts), settings.held_out_calls, settings.seed)
        known = {group(trace) for trace in judged}
        learned = [trace for trace in traces if group(trace) not in known]
    else:
        known = held_groups(traces, settings)
        judged = [trace for trace in traces if group(trace) in known]
        learned = [trace for trace in traces if group(trace) not in known]
    room = target.info.context_length - settings.max_new_tokens
    limit = room if settings.max_context is None else min(room, settings.max_context)
    learn, judge = (
        choose_turns(some, rendering, Choice(calls, settings.turns_per_trace, 0, limit), skipped)
        for some, calls in ((learned, settings.max_calls), (judged, settings.held_out_calls))
    )
    if len(learn) < LEAST_LEARN or len(judge) < LEAST_JUDGE:
        why = skipped.sentence()
        raise DataError(
            f"there are {len(learn)} calls to learn from and {len(judge)} to be judged on{', left out: ' + why if why else ''}. "
            f"Expected at least {LEAST_LEARN} and {LEAST_JUDGE}, of different conversations. Give more traces, or raise "
            "--turns-per-trace."
        )
    names = tuple(s if s.startswith("bfcl:") else Path(s).name for s in (*sources, *apart))
    notes = mismatches(rendering, [*learned, *judged])
    return Split(tuple(learn), tuple(judge), Reading(names, dict(layouts), skipped, tuple(notes), settings.plain))


def group(trace: Trace) -> str:
    """The same for records of one conversation, or of one long text: their first user message."""
    first = next((m for m in trace.messages if m["role"] == "user"), trace.messages[0])
    text = str(first["content"])
    return blake2b((text[:OPENING] if trace.cut is not None else text).encode(), digest_size=8).hexdigest()


def held_groups(traces: Sequence[Trace], settings: SplitSettings) -> set[str]:
    """The share of the conversations that is held out, at least one; which, their words and the seed decide."""
    groups = {group(trace) for trace in traces}
    order = sorted(groups, key=lambda one: blake2b(f"{settings.seed}-{one}".encode(), digest_size=8).digest())
    return set(order[: max(1, round(settings.held_out * len(order)))])


def _read(sources: Sequence[str], skipped: Skipped, layouts: Counter[str]) -> Iterator[Trace]:
    for source in sources:
        for trace in read_traces(source, skipped):
            layouts[trace.layout] += 1
            yield trace
