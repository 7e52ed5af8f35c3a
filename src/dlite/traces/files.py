"""The records of a log, one at a time, whatever file holds them; what is damaged or too large is counted and left out.

JSON lines, a JSON list, one JSON object, each also gzipped, in a folder or in a tar archive. What a file is, its
first bytes tell, not its name. Memory is bounded by the largest record that is let in.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dlite.errors import DataError
from dlite.traces.skipped import Skipped

MAX_RECORD = 32 << 20  # bytes
CHUNK = 1 << 20
QUESTION, CONTEXT = ".md", "_context.txt"  # LongBench v2 as a question in Markdown beside its context
MESSAGES = re.compile(rb'\[\s*\{\s*"(?:role|content)"\s*:')  # a list that is a conversation, not a list of them
STRUCTURE = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError)

NOT_JSON = "not JSON in UTF-8"
NOT_OBJECT = "not a JSON object"
TOO_LARGE = f"larger than {MAX_RECORD >> 20} MiB"
TORN = "a file that is damaged or ends too early"
OTHER_FILE = "a file that is not JSON"
NO_QUESTION = "a context without its question"
NO_CONTEXT = "a Markdown file without its context"


def read_records(path: str | Path, skipped: Skipped) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, record) for every JSON object of a file, folder or archive. Errors: ``DataError`` for a path with nothing."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}. Expected a log of conversations. Check the path.")
    questions: dict[str, str] = {}
    for name, file in _files(path, skipped):
        try:
            if name.endswith(QUESTION):
                questions[name.removesuffix(QUESTION)] = _text(file)
            elif name.endswith(CONTEXT):
                question = questions.pop(name.removesuffix(CONTEXT), None)
                if question is None:
                    skipped.note(NO_QUESTION, name)
                else:
                    yield name, {"markdown": question, "context": _text(file)}
            else:
                yield from _records(name, file, skipped)
        except DAMAGED:
            skipped.note(TORN, name)
    for name in questions:
        skipped.note(NO_CONTEXT, name + QUESTION)


def _files(path: Path, skipped: Skipped) -> Iterator[tuple[str, io.BufferedReader]]:
    """(name, opened file); each must be read before the next is asked for."""
    for place in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        name = str(place.relative_to(path)) if path.is_dir() else place.name
        try:
            archive = tarfile.is_tarfile(place)
            if archive:
                yield from _members(place)
            else:
                with place.open("rb") as file:
                    yield name, _unzipped(file)
        except DAMAGED:
            skipped.note(TORN, name)


def _members(place: Path) -> Iterator[tuple[str, io.BufferedReader]]:
    with tarfile.open(place, "r:*") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, _unzipped(file)


def _unzipped(file: Any) -> io.BufferedReader:
    reader = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)
    if reader.peek(2)[:2] == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(fileobj=reader))
    return reader


def _text(file: io.BufferedReader) -> str:
    return file.read(MAX_RECORD).decode("utf-8", "replace")


def _records(name: str, file: io.BufferedReader, skipped: Skipped) -> Iterator[tuple[str, dict[str, Any]]]:
    start = _first_byte(file)
    if start not in (b"{", b"["):
        if start:
            skipped.note(OTHER_FILE, name)
        return
    listed = start == b"[" and not MESSAGES.match(file.peek(1))
    word = "entry" if listed else "line"
    for number, piece in _elements(file) if listed else _lines(file):
        place = f"{name}, {word} {number}" if number else name
        if len(piece) > MAX_RECORD:
            skipped.note(TOO_LARGE, place)
            continue
        value = parsed(piece)
        if isinstance(value, list) and not listed:
            value = {"messages": value}
        if isinstance(value, dict):
            yield place, value
        else:
            skipped.note(NOT_JSON if value is None else NOT_OBJECT, place)


def parsed(piece: bytes) -> Any:
    """The JSON value of some bytes, None where there is none."""
    try:
        return json.loads(piece.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _first_byte(file: io.BufferedReader) -> bytes:
    """The first byte that is neither white space nor a byte order mark; the file goes on from it."""
    while head := file.peek(1):
        rest = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        file.read(len(head) - len(rest))
        if rest:
            return bytes(rest[:1])
    return b""


def _lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """(line number, line); or (0, everything) for one object laid out over several lines."""
    first = file.readline(MAX_RECORD + 1)
    if len(first) <= MAX_RECORD and parsed(first) is None:
        whole = first + file.read(MAX_RECORD + 1 - len(first))
        if parsed(whole) is not None or not whole.count(b"\n", 0, -1):
            yield 0, whole
            return
        file = io.BufferedReader(_Joined(whole, file))
        first = file.readline(MAX_RECORD + 1)
    number = 1
    while first:
        if first.strip():
            yield number, first
        rest = first
        while rest and not rest.endswith(b"\n"):  # the remainder of a line too long to be kept
            rest = file.readline(CHUNK)
        first, number = file.readline(MAX_RECORD + 1), number + 1


class _Joined(io.RawIOBase):
    """Bytes that were read already, then the rest of the file."""

    def __init__(self, head: bytes, file: IO[bytes]) -> None:
        self._parts: list[IO[bytes]] = [io.BytesIO(head), file]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._parts:
            data = self._parts[0].read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._parts.pop(0)
        return 0


def _elements(file: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of each element of a JSON list, or of several lists, found by the brackets.

    An element that is too large is cut short but stays too large, so that whoever asks can tell.
    """
    kept, number, depth, quoted = bytearray(), 0, 0, False
    while chunk := file.read(CHUNK):
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:  # a backslash and what it escapes stay together
            chunk += file.read(1)
        begin = 0
        for found in STRUCTURE.finditer(chunk):
            sign, at = found[0], found.start()
            if sign == b'"':
                quoted = not quoted
            elif quoted or sign[:1] == b"\\":
                continue
            elif sign in b"[{":
                depth += 1
                begin = at + 1 if depth == 1 else begin
            elif sign in b"]}" or depth == 1:
                depth -= sign in b"]}"
                if depth == 0 or sign == b",":
                    _add(kept, chunk[begin:at])
                    begin = at + 1
                    if kept.strip():
                        number += 1
                        yield number, bytes(kept)
                    kept.clear()
        _add(kept, chunk[begin:] if depth else b"")
    if kept.strip():
        yield number + 1, bytes(kept)  # the list was never closed


def _add(kept: bytearray, more: bytes) -> None:
    kept += more[: max(0, MAX_RECORD + 1 - len(kept))]
