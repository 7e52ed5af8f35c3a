"""JSON lines, one record at a time, with the file and the line number in every complaint."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dlite.errors import DataError


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of a .jsonl or .jsonl.gz file; blank lines are passed over.

    Errors: ``DataError`` for a missing or empty file, a line that is not JSON, or one that is not an object.
    """
    path, number, found = Path(path), 0, False
    try:
        # Bytes, split at line feeds only: JSON strings may hold U+2028 and other marks that text tools split at.
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found = True
                    yield number, _record(line, f"{path}, line {number}")
    except (OSError, EOFError, zlib.error) as error:
        where = f"{path}, after line {number}" if number else str(path)
        raise DataError(f"{where}: {error}. Expected a readable .jsonl or .jsonl.gz file. Check the path.") from None
    if not found:
        raise DataError(f"{path} has no records. Expected one JSON object a line. Check how the file was made.")


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: {error}. Expected one JSON object in UTF-8. Repair or remove the line.") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: found {type(record).__name__}. Expected a JSON object. Repair or remove the line.")
    return record


def trim_torn_line(path: Path) -> None:
    """Make a file ready for appending: end its last line, or cut it where a killed writer left it unfinished."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = position = file.seek(0, os.SEEK_END)
        at = -1
        while position > 0 and at < 0:
            step = min(4096, position)
            position -= step
            file.seek(position)
            at = file.read(step).rfind(b"\n")
        start = position + at + 1 if at >= 0 else 0
        if start == size:
            return
        file.seek(start)
        try:
            json.loads(file.read())
        except ValueError:
            file.truncate(start)
        else:
            file.write(b"\n")


class JsonlWriter:
    """Appends records to a file, each written whole and flushed, after cutting a torn last line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        trim_torn_line(path)
        self._file = path.open("ab")
        self.path = path

    def write(self, record: Mapping[str, Any]) -> None:
        """One line. Errors: ``DataError`` when the disk is full; what was written before stays whole."""
        try:
            self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"{self.path} cannot be written: {error.strerror}. Everything before this record is intact. Free some "
                "space and run the same command again: it goes on where it stopped."
            ) from None

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a full disk was reported by ``write``; closing would only complain again
            self._file.close()
