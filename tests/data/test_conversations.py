"""Conversations on disk: nothing changes on the way, and the split is by id alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlite.data.conversations import (
    Recorded,
    check_vocabulary,
    is_held_out,
    read_conversations,
    to_record,
    training_split,
)
from dlite.errors import DataError
from dlite.target.toy import ToyTarget

TALK = Recorded("a", "s", (5, 6, 7, 8, 9), (False, True, True, False, True), finished=True, looping=False, group="a")
HELD = next(str(i) for i in range(999) if is_held_out(str(i)))


def written(folder: Path, *records: dict[str, Any], name: str = "c.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_spans_are_half_open() -> None:
    assert to_record(TALK)["wrote"] == [[1, 3], [4, 5]]


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, tokens: list[Any], finished: bool, looping: bool) -> None:
    ids, wrote = zip(*tokens, strict=True)
    talk = Recorded("é\u2028", "s", ids, wrote, finished, looping, "é\u2028")
    path = written(tmp_path_factory.mktemp("c"), to_record(talk))
    assert list(read_conversations(path, all_answers=True)) == [talk]


def test_prompt_and_response_ids(tmp_path: Path) -> None:
    record = {"id": 7, "source": "s", "prompt_ids": [1, 2], "response_ids": [3, 4, 5], "finished": False}
    (talk,) = read_conversations(written(tmp_path, record))
    assert talk == Recorded(
        "7", "s", (1, 2, 3, 4, 5), (False, False, True, True, True), finished=False, looping=False, group="7"
    )
    loop = record | {"response_ids": [3, 4] * 40}
    assert list(read_conversations(written(tmp_path, loop))) == []


def test_truncated_and_looping_answers_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    cut = replace(TALK, id="cut", group="cut", finished=False)
    loop = replace(TALK, id="loop", looping=True)
    path = written(tmp_path, *map(to_record, (TALK, cut, loop)))
    assert training_split([path], keep_truncated=False) == ([TALK], [])
    assert training_split([path], keep_truncated=True) == ([TALK, cut], [])
    assert [c.id for c in read_conversations(path, all_answers=True)] == ["a", "cut", "loop"]


def test_the_split_depends_on_the_id_alone(tmp_path: Path) -> None:
    talks = [replace(TALK, id=str(i)) for i in range(400)]
    one = written(tmp_path, *map(to_record, talks))
    other = written(tmp_path, *map(to_record, reversed(talks)), name="d.jsonl")
    train, held = training_split([one], keep_truncated=False)
    assert {c.id for c in held} == {c.id for c in training_split([other], keep_truncated=False)[1]}
    assert {c.id for c in train} | {c.id for c in held} == {c.id for c in talks}
    assert len(train) + len(held) == 400
    assert 1 <= len(held) <= 20
    assert HELD in {c.id for c in held}


def test_the_parts_of_one_log_stay_together(tmp_path: Path) -> None:
    """Split by its own id, a later answer was trained on while an earlier one of the same log was held out."""
    logs = [f"logs-repo__repo-{n}" for n in range(200)]
    records = [to_record(replace(TALK, id=f"{log}-{turn}", source="logs")) for log in logs for turn in (2, 14, 36)]
    noted = [record | {"group": record["id"].rpartition("-")[0]} for record in records]
    for name, lines in (("older.jsonl", records), ("noted.jsonl", noted)):
        train, held = training_split([written(tmp_path, *lines, name=name)], keep_truncated=False)
        assert {t.group for t in held} == {log for log in logs if is_held_out(log)}
        assert len(train) + len(held) == 600
        assert len(held) == 3 * len({t.group for t in held}) > 0


@pytest.mark.parametrize("name", ["set-17", "set-train-17", "set-x/1", "part-2-17", "other-3-4"])
def test_a_row_of_an_older_file_is_its_own_group(tmp_path: Path, name: str) -> None:
    source = "part-2" if name.startswith("part") else "set"
    (talk,) = read_conversations(written(tmp_path, to_record(replace(TALK, id=name, source=source))))
    assert talk.group == name


def test_answers_of_another_target_are_refused() -> None:
    info = replace(ToyTarget().info, name="Maker/Toy-4B", tokenizer_hash="abc")
    fits = [replace(TALK, target=name, tokenizer_hash="abc") for name in ("Maker/Toy-4B", "/models/toy-4b", None)]
    check_vocabulary([TALK, *fits, replace(TALK, target="Maker/Toy-4B", tokenizer_hash="")], info)
    for odd, says in (
        (replace(TALK, target="Maker/Toy-8B", tokenizer_hash="abc"), "'a' was answered by Maker/Toy-8B"),
        (replace(TALK, target="Maker/Toy-4B", tokenizer_hash="def"), "'a' has tokens of the vocabulary def, not abc"),
        (replace(TALK, ids=(5, 6, 7, 8, 12)), "'a' has token id 12, beyond a vocabulary of 12"),
    ):
        with pytest.raises(DataError, match=rf"{says}\. Expected answers of Maker/Toy-4B.* Regenerate them"):
            check_vocabulary([TALK, odd], info)


def test_a_conversation_in_two_files_counts_once(tmp_path: Path) -> None:
    one, two = written(tmp_path, to_record(TALK)), written(tmp_path, to_record(TALK), name="d.jsonl")
    assert training_split([one, two], keep_truncated=False) == ([TALK], [])


@pytest.mark.parametrize(
    "change",
    [
        {"wrote": [[1, 9]]},
        {"wrote": [[1]]},
        {"ids": [5, -1, 7, 8, 9]},
        {"ids": "abcde"},
        {"ids": None},
        {"finished": ...},
    ],
    ids=str,
)
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    record = {k: v for k, v in (to_record(TALK) | change).items() if v is not ...}
    path = written(tmp_path, to_record(TALK), record)
    with pytest.raises(DataError, match=r"c\.jsonl, line 2: not a regenerated conversation"):
        list(read_conversations(path))
