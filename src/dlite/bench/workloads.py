"""From what a user asks for to calls: a file, a public workload by name, or a file under the rules of one."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dlite.bench.hub import hub_rows
from dlite.bench.named import GROUPS, TABLE, Workload
from dlite.bench.suites import Call, calls_of, in_range, load
from dlite.data.chat import render
from dlite.data.rows import read_row
from dlite.errors import ConfigError, DataError
from dlite.target.base import Target
from dlite.traces.bfcl import PREFIX
from dlite.traces.files import read_records
from dlite.traces.read import LAYOUTS, UNKNOWN, read_traces
from dlite.traces.render import Renderer, renderer
from dlite.traces.sample import sample
from dlite.traces.skipped import Skipped
from dlite.traces.trace import Trace, UnusableError

CALLS, NEW_TOKENS = 20, 128  # of a file that is no public workload
SPARE = 4  # conversations held for each that is wanted: some have no call of the right length


@dataclass(frozen=True)
class Item:
    """One workload: its name, and the file it is read from; None for a public workload's own source."""

    name: str
    path: str | None
    rules: Workload | None = None


@dataclass(frozen=True)
class Asked:
    """What the user said about size. None leaves it to the workload's rules, or to the defaults of a plain file."""

    calls: int | None = None
    max_new_tokens: int | None = None
    min_context: int | None = None
    max_context: int | None = None


@dataclass(frozen=True)
class Limits:
    """What holds in the end; ``count`` None is all. Sessions are counted only where the rules say so."""

    count: int | None
    max_new_tokens: int
    min_context: int
    max_context: int
    sessions: bool

    def sentence(self) -> str:
        """For the report."""
        count = "all" if self.count is None else f"up to {self.count}"
        unit = "sessions" if self.sessions else "calls"
        return (
            f"{count} {unit}, {self.max_new_tokens} new tokens, {self.min_context} to {self.max_context} prompt tokens"
        )


def parse(given: str) -> list[Item]:
    """NAME, NAME=FILE or FILE; a name may stand for several workloads. Errors: ``ConfigError`` for neither."""
    name, equals, path = given.rpartition("=")
    if not equals and (given in GROUPS or given in TABLE):
        return [Item(one, None, TABLE[one]) for one in GROUPS.get(given, (given,))]
    if name in GROUPS:
        return [Item(one, path, TABLE[one]) for one in GROUPS[name]]
    return [Item(name, path, TABLE.get(name))]


def limits(item: Item, asked: Asked, context: int) -> Limits:
    """The user's word first, then the workload's rules. Errors: ``ConfigError`` where these leave no room."""
    rules = item.rules
    new = _first(asked.max_new_tokens, rules.max_new_tokens if rules else NEW_TOKENS)
    least = _first(asked.min_context, rules.min_context if rules else 0)
    most = asked.max_context or context - new
    if rules and asked.min_context is None and least >= most:
        raise ConfigError(
            f"{item.name} is measured behind more than {least} tokens; here prompts end at {most}. Expected a target (or "
            "--max-context) with room for them. Give --min-context 0 to measure what fits."
        )
    count = asked.calls if asked.calls is not None else rules.count if rules else CALLS
    return Limits(count, new, least, most, bool(rules and rules.unit == "sessions" and asked.calls is None))


def choose(item: Item, target: Target, within: Limits, seed: int) -> list[Call]:
    """The calls of a workload, the same for the same seed. Errors: ``DataError`` where there are none."""
    if within.count is not None and within.count < 1:
        raise ConfigError(f"n is {within.count}. Expected 1 or more. Ask for at least one call.")
    if item.rules is not None and item.rules.replayed:
        return _replayed(item, item.rules, target, within, seed)
    if item.path is not None:
        calls = load(item.path, workload=item.name or None, max_new_tokens=within.max_new_tokens)
    else:
        calls = _prompts(item, within.max_new_tokens)
    return _in_range(calls, target, within, seed)


def trace_calls(trace: Trace, workload: str, group: str, max_new_tokens: int) -> list[Call]:
    """One call for each turn of a trace that is replayed: the log before it is the context."""
    return [
        Call(f"{group}.{n}", workload, group, trace.messages[:place], trace.tools, (), max_new_tokens)
        for n, place in enumerate(trace.turns, 1)
    ]


def _first(said: int | None, otherwise: int) -> int:
    return otherwise if said is None else said


def _prompts(item: Item, new_tokens: int) -> list[Call]:
    rules = item.rules
    if rules is None or isinstance(rules.source, str):
        raise RuntimeError("a workload without a path has a data set")
    calls: list[Call] = []
    for number, record in enumerate(hub_rows(rules.source, item.name), 1):
        place = f"{item.name}, row {number}"
        try:
            row = rules.shape(record, place)
        except (KeyError, TypeError) as error:
            raise DataError(f"{place}: {error} is missing. Expected the data set as it was published.") from None
        if row is not None:
            calls += calls_of(read_row(row, place), f"{item.name}:{number}", item.name, new_tokens)
    return calls


def _in_range(calls: list[Call], target: Target, within: Limits, seed: int) -> list[Call]:
    n = within.count if within.count is not None else max(1, len(calls))
    least, most = within.min_context, within.max_context
    return in_range(calls, render, target.tokenizer, min_context=least, max_context=most, n=n, seed=seed)


def _replayed(item: Item, rules: Workload, target: Target, within: Limits, seed: int) -> list[Call]:
    """Turns of conversations; long texts that may be cut are cut to the target's context first."""
    rendering, skipped = renderer(target.tokenizer, plain=False), Skipped()
    traces: Iterable[Trace] = _traces(item, rules, skipped)
    if within.count is not None:
        traces = sample(traces, SPARE * within.count, seed)
    groups: list[list[Call]] = []
    for number, trace in enumerate(traces, 1):
        try:
            fitted = rendering.fitted(trace, within.max_context)
            length = len(rendering.ids(fitted, fitted.turns[-1]))  # would the template refuse it?
        except UnusableError as reason:
            skipped.note(str(reason), trace.id)
            continue
        if fitted.cut is not None and length < within.min_context:
            skipped.note("a text shorter than asked for", trace.id)
            continue
        groups.append(trace_calls(fitted, item.name, f"{item.name}:{number}", within.max_new_tokens))
        if fitted.cut is not None and len(groups) == within.count:
            break  # one call a text, and cutting long ones takes its time
    if not groups:
        why = skipped.sentence() or "there are no rows of it"
        raise DataError(f"{item.name} has nothing to replay: {why}. Expected conversations. Check the file.")
    if within.sessions:
        return _sessions(groups, rendering, within, seed)
    return _in_range([call for group in groups for call in group], target, within, seed)


def _traces(item: Item, rules: Workload, skipped: Skipped) -> Iterator[Trace]:
    where = item.path if item.path is not None else rules.source
    if isinstance(where, str) and where.startswith(PREFIX):
        yield from read_traces(where, skipped)
        return
    for place, record in read_records(where, skipped) if isinstance(where, str) else _rows(item, rules):
        shaped = rules.shape(record, place)
        if shaped is None:
            continue
        layout = next((one for one in LAYOUTS if one.fits(shaped)), None)
        try:
            if layout is None:
                raise UnusableError(UNKNOWN)
            found = layout.read(shaped, place)
            yield from [found] if isinstance(found, Trace) else found
        except UnusableError as reason:
            skipped.note(str(reason), place)


def _rows(item: Item, rules: Workload) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(rules.source, str):
        raise RuntimeError("a data set was expected")
    for number, row in enumerate(hub_rows(rules.source, item.name), 1):
        yield f"row {number}", row


def _sessions(groups: list[list[Call]], rendering: Renderer, within: Limits, seed: int) -> list[Call]:
    """Whole sessions, as many as are counted: of each the calls of the right length."""
    chosen: list[Call] = []
    left = within.count if within.count is not None else len(groups)
    random.Random(seed).shuffle(groups)
    for group in groups:
        fitting = [call for call in group if _fits(call, rendering, within)]
        chosen += fitting
        left -= bool(fitting)
        if not left:
            break
    if not chosen:
        raise DataError(
            f"no session has a call behind {within.min_context} to {within.max_context} prompt tokens. Expected at least one. "
            "Widen the range."
        )
    return chosen


def _fits(call: Call, rendering: Renderer, within: Limits) -> bool:
    tokens = len(render(rendering.tokenizer, call.messages, call.tools))
    return within.min_context <= tokens <= within.max_context
