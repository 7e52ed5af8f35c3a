"""Records come out of whatever holds them; what is damaged, too large or of another kind is counted and passed over."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dlite.errors import DataError
from dlite.traces import files
from dlite.traces.files import read_records
from dlite.traces.skipped import Skipped

ROWS = [{"a": 1}, {"b": ['"]}', "\\", "\u2028"]}, {"c": {"d": [[], {}]}}]


def read(path: Path) -> tuple[list[Any], dict[str, int]]:
    skipped = Skipped()
    return [record for _, record in read_records(path, skipped)], skipped.counts


def lines(*rows: Any) -> bytes:
    return b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows)


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "data",
    [
        lines(*ROWS),
        b"\xef\xbb\xbf\n  " + lines(*ROWS) + b"\n\n",
        json.dumps(ROWS).encode(),
        json.dumps(ROWS, indent=2).encode(),
        json.dumps(ROWS[:2]).encode() + b"\n" + json.dumps(ROWS[2:]).encode(),
    ],
    ids=["lines", "mark and blanks", "list", "laid out list", "two lists"],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_the_same_records_from_every_form(tmp_path: Path, data: bytes, zipped: bool) -> None:
    path = put(tmp_path, "log.whatever", gzip.compress(data) if zipped else data)
    assert read(path) == (ROWS, {})


def test_one_object_over_several_lines(tmp_path: Path) -> None:
    assert read(put(tmp_path, "run.traj", json.dumps(ROWS[1], indent=1).encode())) == ([ROWS[1]], {})


@pytest.mark.parametrize("layout", [None, 1])
def test_a_list_of_messages_is_one_conversation(tmp_path: Path, layout: int | None) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    data = json.dumps(messages, indent=layout).encode()
    assert read(put(tmp_path, "m.json", data)) == ([{"messages": messages}], {})
    assert read(put(tmp_path, "m.jsonl", lines(messages, messages)))[0] == [{"messages": messages}] * 2


def test_folders_and_archives(tmp_path: Path) -> None:
    put(tmp_path, "logs/b.jsonl", lines(ROWS[0]))
    put(tmp_path, "logs/deep/a.json.gz", gzip.compress(json.dumps([ROWS[1]]).encode()))
    put(tmp_path, "logs/picture.png", b"\x89PNG")
    put(tmp_path, "logs/empty.jsonl", b"")
    assert read(tmp_path / "logs") == ([ROWS[0], ROWS[1]], {files.OTHER_FILE: 1})
    with tarfile.open(tmp_path / "logs.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "logs", "logs")
    found, counts = read(tmp_path / "logs.tar.gz")
    assert sorted(found, key=str) == sorted([ROWS[0], ROWS[1]], key=str)
    assert counts == {files.OTHER_FILE: 1}


def test_a_question_beside_its_context(tmp_path: Path) -> None:
    put(tmp_path, "set/one.md", b"# Question")
    put(tmp_path, "set/one_context.txt", "l\u00e4nge".encode())
    put(tmp_path, "set/two_context.txt", b"alone")
    put(tmp_path, "set/README.md", b"about")
    assert read(tmp_path / "set") == (
        [{"markdown": "# Question", "context": "l\u00e4nge"}],
        {files.NO_QUESTION: 1, files.NO_CONTEXT: 1},
    )


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"a": ', files.NOT_JSON),
        (b"\xff\xfe", files.NOT_JSON),
        (b"17", files.NOT_OBJECT),
        (b'"text"', files.NOT_OBJECT),
    ],
)
def test_a_bad_line_costs_only_itself(tmp_path: Path, bad: bytes, reason: str) -> None:
    for rows in ((bad, *ROWS), (*ROWS, bad), (ROWS[0], bad, *ROWS[1:])):
        data = lines(*rows)
        if data[:1] not in (b"{", b"["):
            data = lines({"first": 1}) + data
        found, counts = read(put(tmp_path, "log.jsonl", data))
        assert [row for row in found if row != {"first": 1}] == ROWS
        assert counts == {reason: 1}


def test_nesting_without_end_is_not_a_traceback(tmp_path: Path) -> None:
    deep = b'{"a":' * 200_000
    assert read(put(tmp_path, "deep.jsonl", lines(ROWS[0], deep))) == ([ROWS[0]], {files.NOT_JSON: 1})
    assert read(put(tmp_path, "deep.json", b"[" * 200_000))[0] == []


def test_a_record_that_is_too_large_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_RECORD", 100)
    monkeypatch.setattr(files, "CHUNK", 16)
    large = {"text": "x" * 1000}
    for data in (lines(ROWS[0], large, ROWS[2]), json.dumps([ROWS[0], large, ROWS[2]]).encode()):
        assert read(put(tmp_path, "log.json", data)) == ([ROWS[0], ROWS[2]], {files.TOO_LARGE: 1})
    assert read(put(tmp_path, "log.json", lines(large, ROWS[0]))) == ([ROWS[0]], {files.TOO_LARGE: 1})


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_elements_are_found_whatever_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(files, "CHUNK", chunk)
    rows = [*ROWS, {"quote": 'a\\"],{"b'}, {"slash": "\\\\"}]
    assert read(put(tmp_path, "log.json", json.dumps(rows).encode())) == (rows, {})


def test_torn_files_give_what_is_whole(tmp_path: Path) -> None:
    torn = gzip.compress(lines(*ROWS * 2000))[:-200]
    found, counts = read(put(tmp_path, "torn.jsonl.gz", torn))
    assert found[:3] == ROWS
    assert counts == {files.TORN: 1}
    assert read(put(tmp_path, "torn.json", json.dumps(ROWS).encode()[:-4])) == (ROWS[:2], {files.NOT_JSON: 1})
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name in ("a.jsonl", "b.jsonl"):
            info = tarfile.TarInfo(name)
            info.size = len(lines(*ROWS))
            archive.addfile(info, io.BytesIO(lines(*ROWS)))
    found, counts = read(put(tmp_path, "torn.tar", whole.getvalue()[:1600]))
    assert found[:3] == ROWS
    assert sum(counts.values()) >= 1


def test_nothing_at_a_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file or folder .*none\. Expected a log"):
        read(tmp_path / "none")
