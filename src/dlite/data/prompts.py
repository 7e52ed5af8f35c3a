"""Prompts for the target to answer: one row of a file, one or more of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from dlite.data.chat import Message
from dlite.data.jsonl import read_jsonl
from dlite.data.rows import Row, read_row


@dataclass(frozen=True)
class Prompt:
    """A conversation for the target to continue.

    ``messages`` is history as logged; ``turns`` are user turns still to be put, one after each answer; ``ids`` are
    ready token ids in place of both. ``trace`` names the agent's log it is a part of.
    """

    id: str
    source: str
    messages: tuple[Message, ...] = ()
    turns: tuple[str, ...] = ()
    tools: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()
    trace: str | None = None


def read_prompts(
    path: str | Path, *, calls_per_trace: int = 4, max_chars: int | None = None, seed: int = 0
) -> Iterator[Prompt]:
    """Prompts of a .jsonl or .jsonl.gz file in any layout that ``read_row`` knows.

    From an agent's log ``calls_per_trace`` assistant turns with a history of at most ``max_chars`` characters are
    chosen, the same for the same seed. Errors: ``DataError`` with the line number.
    """
    source = Path(path).name.split(".")[0]
    for number, record in read_jsonl(path):
        row = read_row(record, f"{path}, line {number}")
        if row.answers:
            name = str(record["instance_id"])
            for end in _chosen(row, calls_per_trace, max_chars, f"{seed}-{name}"):
                trace = f"{source}-{name}"
                yield Prompt(f"{trace}-{end}", source, row.messages[:end], tools=row.tools, trace=trace)
        else:
            given = (record.get(name) for name in ("id", "task_id"))
            key = next((value for value in given if value is not None), number)
            yield Prompt(f"{source}-{key}", source, row.messages, row.turns, row.tools, row.ids)


def _chosen(row: Row, calls: int, max_chars: int | None, seed: str) -> list[int]:
    """Answers of an agent's log, spread over it."""
    before = [0, *accumulate(len(str(m.get("content") or "")) for m in row.messages)]
    short = [i for i in row.answers if max_chars is None or before[i] <= max_chars]
    return sorted(random.Random(seed).sample(short, min(calls, len(short))))
