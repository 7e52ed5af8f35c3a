"""JSON lines: where a complaint points to, and files left by a kill or a full disk."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from dlite.data.jsonl import JsonlWriter, read_jsonl, trim_torn_line
from dlite.errors import DataError


def test_line_numbers_count_blank_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "one\u2028two\u0085"}\n\n  \n{"a": 2}', encoding="utf-8")
    assert list(read_jsonl(path)) == [(1, {"a": "one\u2028two\u0085"}), (4, {"a": 2})]


def test_a_compressed_file_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n{"a": 2}\n'))
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (2, {"a": 2})]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a": ', "Expecting value"),
        (b"[1]", "found list. Expected a JSON object"),
        (b'{"a": "\xff"}', "'utf-8' codec"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=rf"a\.jsonl, line 3: {words}"):
        list(read_jsonl(path))


def test_files_that_hold_nothing_readable(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file .* Check the path"):
        list(read_jsonl(tmp_path / "missing.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="has no records"):
        list(read_jsonl(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
def test_a_damaged_compressed_file_is_a_data_error(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(b"".join(b'{"a": %d}\n' % (i * i) for i in range(400)))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(
        {"cut": whole[:-60], "flipped": whole[:200] + b"\xff" * 60 + whole[260:], "not gzip": b"{}\n"}[damage]
    )
    with pytest.raises(DataError, match=r"Expected a readable \.jsonl"):
        list(read_jsonl(path))


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    """A file made by hand may lack the last line feed; cutting that line would lose a record."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}')
    with JsonlWriter(path) as writer:
        writer.write({"a": 2})
    assert [r for _, r in read_jsonl(path)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("torn", [b"", b'{"a": 3', b"x" * 5000])
def test_a_torn_last_line_is_cut_and_appending_goes_on(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    with JsonlWriter(path) as writer:
        writer.write({"a": 1})
        writer.write({"a": "é\u2028"})
    path.write_bytes(path.read_bytes() + torn)
    with JsonlWriter(path) as writer:
        writer.write({"a": 4})
    assert [r for _, r in read_jsonl(path)] == [{"a": 1}, {"a": "é\u2028"}, {"a": 4}]


def test_a_file_of_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a"')
    trim_torn_line(path)
    assert path.read_bytes() == b""
    trim_torn_line(tmp_path / "missing.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_once_and_plainly(tmp_path: Path) -> None:
    def run() -> None:
        with JsonlWriter(tmp_path / "a.jsonl") as writer:
            writer._file.close()
            writer._file = Path("/dev/full").open("ab")
            writer.write({"a": 1})

    with pytest.raises(DataError, match="No space left on device. Everything before this record is intact"):
        run()
