"""What a running server says of its drafts: JSON lines of counts, or the Prometheus text of vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlite.audit.figures import ALL, Figures, context_bucket
from dlite.bench.figures import bootstrap
from dlite.errors import DataError
from dlite.traces.files import read_records
from dlite.traces.skipped import Skipped
from dlite.types import Seconds

SERVER = "server"
DEFAULTS: tuple[tuple[str, Any], ...] = (("rounds", 1), ("proposed", None), ("accepted", None))
MOST_DRAFTS = 1000  # accepted in a round; more is no count of drafts
BLOCKS = 500  # rows that follow each other are resampled together, at most so many groups of them
COUNTER = re.compile(
    r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)(?:_total)?(\{[^}]*\})?\s+(\S+)"
)
POSITION = re.compile(r'position="(\d+)"')
ROW = 'rows of JSON such as {"context": 5120, "proposed": 7, "accepted": 2}, or vLLM\'s /metrics text'


@dataclass(frozen=True)
class Count:
    """Rounds of one row of a log: drafts proposed and accepted, behind ``context`` tokens if that is known.

    ``by_position[i]`` counts the rounds whose first i + 1 drafts were all accepted, () where nobody knows.
    """

    context: int | None
    rounds: int
    proposed: int
    accepted: int
    by_position: tuple[int, ...]


def read_server_log(path: str | Path, skipped: Skipped) -> list[Count]:
    """The counts of a file. Errors: ``DataError`` for a file without any."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            is_text = file.read(4096).lstrip()[:1] not in (b"{", b"[", b"\x1f")
        counts = [_vllm_file(path)] if is_text else _rows(path, skipped)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}. Expected a server's log. Check the path.") from None
    found = [one for one in counts if one is not None]
    if not found:
        more = f" Left out: {skipped.sentence()}." if skipped.total else ""
        raise DataError(f"{path} has no counts of drafts. Expected {ROW}.{more} Check the file.")
    return found


def server_figures(counts: list[Count], *, seed: int) -> list[Figures]:
    """All rounds, then by context length where it is known. There are no times in such logs, so no costs."""
    rows = [_figures("all", ALL, counts, seed)]
    known = [(one.context, one) for one in counts if one.context is not None]
    groups = dict.fromkeys(context_bucket(context) for context, _ in sorted(known, key=lambda pair: pair[0]))
    for group in groups:
        rows.append(
            _figures("context", group, [one for context, one in known if context_bucket(context) == group], seed)
        )
    return rows


def _rows(path: Path, skipped: Skipped) -> list[Count | None]:
    counts: list[Count | None] = []
    for place, record in read_records(path, skipped):
        count = _count(record)
        if count is None:
            skipped.note("a row without whole numbers proposed >= accepted >= 0", place)
        counts.append(count)
    return counts


def _count(record: Mapping[str, Any]) -> Count | None:
    context, positions = record.get("context"), record.get("accepted_by_position", [])
    rounds, proposed, accepted = (record.get(key, other) for key, other in DEFAULTS)
    if not isinstance(positions, list) or not all(map(_whole, (rounds, proposed, accepted, context or 0, *positions))):
        return None
    if rounds < 1 or accepted > min(proposed, MOST_DRAFTS * rounds):
        return None
    by_position = positions or [1] * (accepted if rounds == 1 else 0)
    return Count(context, rounds, proposed, accepted, tuple(by_position))


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _vllm_file(path: Path) -> Count | None:
    with path.open(encoding="utf-8", errors="replace") as file:
        return vllm_count(file)


def vllm_count(lines: Iterable[str]) -> Count | None:
    """The counters of all engines together, in the text that vLLM gives at /metrics; None where it drafted nothing."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for line in lines:
        found = COUNTER.match(line[:4096])
        try:
            value = float(found[3]) if found else 0.0
        except ValueError:
            continue
        if found and value >= 0 and value < 1 << 53:
            sums[found[1]] = sums.get(found[1], 0.0) + value
            if place := POSITION.search(found[2] or ""):
                at = int(place[1][:4])
                positions[at] = positions.get(at, 0.0) + value
    drafts, proposed, accepted = (int(sums.get(key, 0)) for key in ("drafts", "draft_tokens", "accepted_tokens"))
    if not drafts or accepted > proposed:
        return None
    return Count(None, drafts, proposed, accepted, tuple(int(positions[i]) for i in sorted(positions)))


def _figures(by: str, group: str, counts: list[Count], seed: int) -> Figures:
    columns = np.array([(one.accepted + one.rounds, one.rounds) for one in counts], dtype=np.float64)
    rounds = sum(one.rounds for one in counts)
    tau = bootstrap(_blocks(columns), lambda sums: np.asarray(sums[..., 0] / sums[..., 1]), seed=seed)
    told = [one for one in counts if one.by_position or not one.accepted]
    longest = max((len(one.by_position) for one in told), default=0)
    base = sum(one.rounds for one in told)
    reached = [sum(one.by_position[i] for one in told if i < len(one.by_position)) for i in range(longest)]
    contexts = [one.context for one in counts if one.context is not None]
    return Figures(
        by=by,
        group=group,
        arm=SERVER,
        calls=len(counts),
        context=float(np.median(contexts)) if contexts else 0.0,
        tokens=sum(one.accepted for one in counts) + rounds,
        rounds=rounds,
        tau=tau,
        acceptance=tuple(min(1.0, value / base) for value in reached),
        round_cost=None,
        speedup=None,
        call_ratio=None,
        seconds=Seconds(),
    )


def _blocks(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows as they are, or sums of neighbours where there are many."""
    if len(columns) <= BLOCKS:
        return columns
    return np.array([part.sum(0) for part in np.array_split(columns, BLOCKS)])
