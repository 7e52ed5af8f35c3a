"""JSON lines, one record at a time, with the file and the line number in every complaint."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dlite.errors import DataError


def read_jsonl(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of a .jsonl or .jsonl.gz file; blank lines are passed over.

    Errors: ``DataError`` for a missing or empty file, a line that is not JSON, or one that is not an object.
    """
    path = Path(path)
    count = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):  # split at \n only: U+2028 may stand inside a string
                if raw.strip():
                    count += 1
                    yield number, _record(raw, path, number)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path} cannot be read: {reason}. Expected a .jsonl or .jsonl.gz file. Check the path.") from None
    if not count:
        raise DataError(f"{path} has no records. Expected one JSON object a line. Check how the file was made.")


def _record(raw: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(raw)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}, line {number}: not JSON ({error}). Expected one JSON object a line. Mend or remove that line."
        ) from None
    if not isinstance(record, dict):
        raise DataError(
            f"{path}, line {number}: found a JSON {type(record).__name__}. Expected an object. Mend or remove that line."
        )
    return record


def trim_torn_line(path: Path) -> None:
    """Cut an unfinished last line that a killed writer left, so that appending goes on cleanly."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        position = size
        while position > 0:
            step = min(4096, position)
            file.seek(position - step)
            at = file.read(step).rfind(b"\n")
            if at >= 0:
                file.truncate(position - step + at + 1)
                return
            position -= step
        file.truncate(0)


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
        self._file.close()
