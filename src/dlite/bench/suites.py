"""Workloads: what a benchmark asks, read from JSONL files into one list of calls.

A workload is the calls that carry its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlite.data.chat import Message, user
from dlite.data.jsonl import read_jsonl
from dlite.data.rows import Row, read_row
from dlite.errors import ConfigError, DataError

Render = Callable[[Any, Sequence[Message], Sequence[Any] | None], Sequence[int]]  # (tokenizer, messages, tools) -> ids


@dataclass(frozen=True)
class Call:
    """One request of a workload: ``messages`` (with ``tools``) to render, or ready token ``ids``.

    ``follows`` names an earlier call of the same conversation: its messages and the target's own plain answer come
    before ``messages``. Calls of one ``group`` come from one line of a file.
    """

    id: str
    workload: str
    group: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()
    max_new_tokens: int = 256
    follows: str | None = None


def load(path: str | Path, *, workload: str | None = None, max_new_tokens: int = 256) -> list[Call]:
    """Every call of a ``.jsonl`` or ``.jsonl.gz`` file in any layout that ``read_row`` knows.

    ``turns`` become one call each, every one behind the target's own answer to the one before. Agent logs give a call
    for each assistant message: the log before it is the context. Any other row is one call. ``workload`` is by default
    the file's name. Errors: ``DataError`` with the line number.
    """
    path = Path(path)
    name = workload or path.name.removesuffix(".gz").removesuffix(".jsonl")
    calls: list[Call] = []
    for number, record in read_jsonl(path):
        calls += calls_of(read_row(record, f"{path}, line {number}"), f"{name}:{number}", name, max_new_tokens)
    return calls


def calls_of(row: Row, group: str, workload: str, limit: int) -> list[Call]:
    """The calls of one row: of each answer of an agent's log, of each of ``turns``, or one."""
    whole = Call(group, workload, group, row.messages, row.tools, row.ids, limit)
    if row.answers:
        return [replace(whole, id=f"{group}.{n}", messages=row.messages[:end]) for n, end in enumerate(row.answers, 1)]
    if not row.turns:
        return [whole]
    names = [group, *(f"{group}.{n}" for n in range(2, len(row.turns) + 1))]
    return [
        replace(whole, id=name, messages=(user(turn),), follows=before)
        for name, before, turn in zip(names, [None, *names], row.turns, strict=False)
    ]


def in_range(
    calls: Sequence[Call], render: Render, tokenizer: Any, *, min_context: int = 0, max_context: int, n: int, seed: int
) -> list[Call]:
    """Up to ``n`` calls whose rendered prompt has min_context to max_context tokens, in the order of the file.

    The same for the same seed. A conversation is judged by its first turn, the only one known before the run.
    """
    _positive("n", n)
    if not 0 <= min_context <= max_context:
        raise ConfigError(
            f"the context range is {min_context} to {max_context}. Expected 0 <= min_context <= max_context."
        )
    bounds: dict[str, tuple[int, int]] = {}  # per group: messages known to be too few, messages known to be too many
    chosen: set[str] = set()
    for chain in _shuffled_chains(calls, seed):
        first = chain[0]
        few, many = bounds.get(first.group, (-1, 1 << 60))
        if len(chosen) >= n or (first.messages and not few < len(first.messages) < many):
            continue
        tokens = len(first.ids or render(tokenizer, first.messages, first.tools))
        if tokens < min_context:
            bounds[first.group] = (len(first.messages), many)
        elif tokens > max_context:
            bounds[first.group] = (few, len(first.messages))
        else:
            chosen.update(call.id for call in chain[: n - len(chosen)])
    if not chosen:
        raise DataError(
            f"none of {len(calls)} calls has {min_context} to {max_context} prompt tokens. Expected at least one. "
            "Widen the range."
        )
    return [call for call in calls if call.id in chosen]


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}. Expected 1 or more. Ask for at least one call.")


def _shuffled_chains(calls: Sequence[Call], seed: int) -> list[list[Call]]:
    """Calls that follow each other belong together; the chains in an order fixed by the seed."""
    chains: dict[str, list[Call]] = {}
    for call in calls:
        chain = chains.get(call.follows or "", [])
        chain.append(call)
        chains[call.id] = chain
    unique = list({id(chain): chain for chain in chains.values()}.values())
    random.Random(seed).shuffle(unique)
    return unique
