"""The file that answers are appended to: what it holds, how they were made, and what a run adds to it.

The file is the state: a killed run goes on with the ids it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlite.data.conversations import to_record
from dlite.data.dialogue import Dialogue, opening_ids
from dlite.data.jsonl import JsonlWriter, read_jsonl, trim_torn_line
from dlite.data.prompts import Prompt
from dlite.errors import DataError
from dlite.types import Conversation

Progress = Callable[[Conversation], None]


@dataclass
class Tally:
    """What a run did."""

    written: int = 0
    tokens: int = 0
    resumed: int = 0
    too_long: int = 0
    truncated: int = 0
    looping: int = 0


class Answers:
    """Knows what ``out`` holds and appends to it.

    ``made`` says how the answers come about: it stands in every record, and a file whose records say otherwise is
    refused (``DataError``).
    """

    def __init__(self, out: Path, made: Mapping[str, Any], progress: Progress | None = None) -> None:
        self.tally = Tally()
        self._done = _ids(out, made)
        self._made, self._progress = made, progress
        self._writer = JsonlWriter(out)

    def missing(self, prompts: Iterable[Prompt], tokenizer: Any, limit: int) -> Iterator[Dialogue]:
        """Every prompt still to be answered, as it begins; those of more than ``limit`` tokens are left out."""
        for prompt in prompts:
            if prompt.id in self._done:
                self.tally.resumed += 1
                continue
            ids = opening_ids(tokenizer, prompt)
            if len(ids) > limit:
                self.tally.too_long += 1
                continue
            self._done.add(prompt.id)
            yield Dialogue(prompt, ids)

    def write(self, dialogue: Dialogue, *, finished: bool) -> None:
        """Append a dialogue that has come to its end."""
        conversation = dialogue.conversation(finished=finished)
        group = dialogue.prompt.trace or dialogue.prompt.id
        self._writer.write({**to_record(conversation), "group": group, **self._made})
        self.tally.written += 1
        self.tally.tokens += sum(conversation.wrote)
        self.tally.truncated += not finished
        self.tally.looping += conversation.looping
        if self._progress:
            self._progress(conversation)

    def __enter__(self) -> Answers:
        self._writer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)


def _ids(out: Path, made: Mapping[str, Any]) -> set[str]:
    """Ids in the file, whose torn last line, if any, is cut."""
    trim_torn_line(out)
    if not out.exists() or not out.stat().st_size:
        return set()
    done = set()
    for number, record in read_jsonl(out):
        for key, wanted in made.items():
            if record.get(key, wanted) != wanted:  # a file without these facts is an older one
                raise DataError(
                    f"{out}, line {number}: its answers were made with {key} {record[key]!r}. Expected {wanted!r} as in this "
                    "run: one file holds answers of one kind. Go on as it was begun, or give another --out."
                )
        done.add(str(record.get("id")))
    return done
