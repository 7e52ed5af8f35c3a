"""From logs to traces: the layout of each record is told by what it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from dlite.traces import agents, bfcl, chats, documents
from dlite.traces.files import read_records
from dlite.traces.skipped import Skipped
from dlite.traces.trace import Trace, UnusableError

Record = Mapping[str, Any]
UNKNOWN = "a layout that is not known"
AGAIN = "the same conversation again"


@dataclass(frozen=True)
class Layout:
    """How a kind of record is told and read."""

    fits: Callable[[Record], bool]
    read: Callable[[Record, str], Trace | Iterable[Trace]]


LAYOUTS = (  # the first that fits counts
    Layout(bfcl.is_bfcl, bfcl.read_bfcl),
    Layout(agents.is_tau_bench, agents.read_tau_bench),
    Layout(agents.is_swe_agent, agents.read_swe_agent),
    Layout(agents.is_mini_swe, agents.read_mini_swe),
    Layout(documents.is_locomo, documents.read_locomo),
    Layout(documents.is_qmsum, documents.read_qmsum),
    Layout(documents.is_longbench, documents.read_longbench),
    Layout(chats.is_sharegpt, chats.read_sharegpt),
    Layout(chats.is_chat, chats.read_chat),
)


def read_traces(source: str | Path, skipped: Skipped) -> Iterator[Trace]:
    """Every conversation of a file, folder or archive, or of a BFCL set ('bfcl:multi_turn_base'), one at a time.

    What cannot be used is counted in ``skipped`` with its reason. Errors: ``DataError`` for a path with nothing at it,
    ``DliteError`` where BFCL sessions are met without their package.
    """
    seen: set[bytes] = set()
    path = bfcl.bfcl_file(str(source)) if str(source).startswith(bfcl.PREFIX) else source
    for place, record in read_records(path, skipped):
        try:
            for trace in _traces(record, place):
                mark = _digest(trace)
                if mark in seen:
                    skipped.note(AGAIN, place)
                else:
                    seen.add(mark)
                    yield trace
        except UnusableError as reason:
            skipped.note(str(reason), place)


def _traces(record: Record, place: str) -> Iterable[Trace]:
    for layout in LAYOUTS:
        if layout.fits(record):
            found = layout.read(record, place)
            return [found] if isinstance(found, Trace) else found
    raise UnusableError(UNKNOWN)


def _digest(trace: Trace) -> bytes:
    """The same for the same messages, tools and turns."""
    whole = json.dumps([trace.messages, trace.tools, trace.turns], default=str)
    return blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16).digest()
