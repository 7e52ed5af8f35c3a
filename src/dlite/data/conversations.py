"""Conversations on disk: the exact token ids and which of them the target wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlite.data.jsonl import read_jsonl
from dlite.engine.stats import is_looping
from dlite.errors import DataError
from dlite.target.base import TargetInfo
from dlite.types import Conversation


def to_record(conversation: Conversation) -> dict[str, Any]:
    """The JSON form; ``wrote`` as [start, end) spans."""
    return {
        "id": conversation.id,
        "source": conversation.source,
        "ids": list(conversation.ids),
        "wrote": _spans(conversation.wrote),
        "finished": conversation.finished,
        "looping": conversation.looping,
    }


def read_conversations(path: str | Path, *, all_answers: bool = False) -> Iterator[Conversation]:
    """Conversations of a file; looping ones are left out unless ``all_answers``.

    Also read: the layout with `prompt_ids` and `response_ids`. Errors: ``DataError`` with the line number.
    """
    for number, record in read_jsonl(path):
        conversation = _parse(record, path, number)
        if all_answers or not conversation.looping:
            yield conversation


def _parse(record: dict[str, Any], path: str | Path, number: int) -> Conversation:
    try:
        if "prompt_ids" in record:
            prompt, answer = list(record["prompt_ids"]), list(record["response_ids"])
            ids, spans = prompt + answer, [[len(prompt), len(prompt) + len(answer)]]
        else:
            answer, ids, spans = [], list(record["ids"]), record["wrote"]
        wrote = [False] * len(ids)
        for start, end in spans:
            wrote[start:end] = [True] * (end - start)
        if len(wrote) != len(ids) or not all(isinstance(t, int) and t >= 0 for t in ids):
            raise ValueError("spans or ids out of range")
        return Conversation(
            str(record["id"]),
            str(record["source"]),
            tuple(ids),
            tuple(wrote),
            bool(record["finished"]),
            bool(record.get("looping", is_looping(answer))),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}, line {number}: not a regenerated conversation ({type(error).__name__}: {error}). Expected the keys "
            "id, source, ids, wrote, finished. Make the file with: dlite regenerate"
        ) from None


def _spans(wrote: tuple[bool, ...]) -> list[list[int]]:
    edges = [i for i in range(len(wrote) + 1) if (i < len(wrote) and wrote[i]) != (i > 0 and wrote[i - 1])]
    return [[edges[i], edges[i + 1]] for i in range(0, len(edges), 2)]


def is_held_out(conversation_id: str) -> bool:
    """One conversation in fifty, by its id alone, is never trained on: tau during training is measured on these."""
    return int(hashlib.sha256(conversation_id.encode()).hexdigest(), 16) % 50 == 0


def check_vocabulary(conversations: Sequence[Conversation], info: TargetInfo) -> None:
    """Refuse conversations with token ids that the target does not have: they are another model's."""
    for conversation in conversations:
        if max(conversation.ids) >= info.vocab_size:
            raise DataError(
                f"conversation {conversation.id!r} has token id {max(conversation.ids)}; {info.name} has {info.vocab_size} "
                "tokens. Regenerate the answers with the target you train for."
            )


def training_split(
    paths: Sequence[str | Path], *, keep_truncated: bool
) -> tuple[list[Conversation], list[Conversation]]:
    """(to train on, held out) of all files; looping answers always, truncated ones unless kept, are left out."""
    train: list[Conversation] = []
    held: list[Conversation] = []
    seen: set[str] = set()
    for path in paths:
        for conversation in read_conversations(path):
            if conversation.id in seen or not (conversation.finished or keep_truncated):
                continue
            seen.add(conversation.id)
            (held if is_held_out(conversation.id) else train).append(conversation)
    return train, held
