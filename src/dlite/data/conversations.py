"""Conversations on disk: the exact token ids and which of them the target wrote."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlite.data.jsonl import read_jsonl
from dlite.engine.stats import is_looping
from dlite.errors import DataError
from dlite.target.base import TargetInfo
from dlite.types import Conversation


@dataclass(frozen=True)
class Recorded(Conversation):
    """A conversation as its file tells it.

    ``group`` is what may only be trained on or held out as a whole. ``target`` and ``tokenizer_hash`` say whose answers
    these are; None in a file that does not say.
    """

    group: str
    target: str | None = None
    tokenizer_hash: str | None = None


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


def read_conversations(path: str | Path, *, all_answers: bool = False) -> Iterator[Recorded]:
    """Conversations of a file; looping ones are left out unless ``all_answers``.

    Also read: the layout with `prompt_ids` and `response_ids`. Errors: ``DataError`` with the line number.
    """
    for number, record in read_jsonl(path):
        conversation = _parse(record, path, number)
        if all_answers or not conversation.looping:
            yield conversation


def _parse(record: dict[str, Any], path: str | Path, number: int) -> Recorded:
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
        return Recorded(
            str(record["id"]),
            str(record["source"]),
            tuple(ids),
            tuple(wrote),
            bool(record["finished"]),
            bool(record.get("looping", is_looping(answer))),
            _group(record),
            record.get("target"),
            record.get("tokenizer_hash"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}, line {number}: not a regenerated conversation ({type(error).__name__}: {error}). Expected the keys "
            "id, source, ids, wrote, finished. Make the file with: dlite regenerate"
        ) from None


def _spans(wrote: tuple[bool, ...]) -> list[list[int]]:
    edges = [i for i in range(len(wrote) + 1) if (i < len(wrote) and wrote[i]) != (i > 0 and wrote[i - 1])]
    return [[edges[i], edges[i + 1]] for i in range(0, len(edges), 2)]


def _group(record: dict[str, Any]) -> str:
    """The agent's log a conversation is a part of, or its own id."""
    if "group" in record:
        return str(record["group"])
    # Files made before groups were noted: logs have names like django__django-11099, and the place of the answer follows.
    name = str(record["id"])
    turn = re.fullmatch(rf"{re.escape(str(record['source']))}-.*-\d+(-\d+)", name)
    return name.removesuffix(turn[1]) if turn else name


def is_held_out(group: str) -> bool:
    """One group in fifty, by its name alone, is never trained on: tau during training is measured on these."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 50 == 0


def check_vocabulary(conversations: Sequence[Conversation], info: TargetInfo) -> None:
    """Refuse conversations that are another model's, by what their file says or by ids that the target does not have."""
    for conversation in conversations:
        if odd := _misfit(conversation, info):
            raise DataError(
                f"conversation {conversation.id!r} {odd}. Expected answers of {info.name}: no other text teaches its drafter. "
                "Regenerate them with it, or name the target that gave them."
            )


def _misfit(conversation: Conversation, info: TargetInfo) -> str | None:
    if max(conversation.ids) >= info.vocab_size:
        return f"has token id {max(conversation.ids)}, beyond a vocabulary of {info.vocab_size}"
    if not isinstance(conversation, Recorded):
        return None
    name, vocabulary = conversation.target, conversation.tokenizer_hash
    if name and Path(name).name.lower() != Path(info.name).name.lower():  # a folder may stand for a hub id
        return f"was answered by {name}"
    if vocabulary and info.tokenizer_hash and vocabulary != info.tokenizer_hash:
        return f"has tokens of the vocabulary {vocabulary}, not {info.tokenizer_hash}"
    return None


def training_split(paths: Sequence[str | Path], *, keep_truncated: bool) -> tuple[list[Recorded], list[Recorded]]:
    """(to train on, held out) of all files; looping answers always, truncated ones unless kept, are left out."""
    train: list[Recorded] = []
    held: list[Recorded] = []
    seen: set[str] = set()
    for path in paths:
        for conversation in read_conversations(path):
            if conversation.id in seen or not (conversation.finished or keep_truncated):
                continue
            seen.add(conversation.id)
            (held if is_held_out(conversation.group) else train).append(conversation)
    return train, held
