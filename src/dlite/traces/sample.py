"""Some traces of many, without holding the many."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from dlite.errors import ConfigError
from dlite.traces.trace import Trace


def sample(traces: Iterable[Trace], n: int, seed: int) -> list[Trace]:
    """``n`` traces, the same for the same seed and file, in an order that the seed decides; all are given distinct ids.

    A trace stays if a hash of the seed and its place among the traces is small, so only ``n`` are held at a time.
    """
    if n < 1:
        raise ConfigError(f"the number of traces is {n}. Expected 1 or more. Raise it.")
    held: list[tuple[int, int, Trace]] = []  # a heap whose first entry leaves next
    for place, trace in enumerate(traces):
        mark = blake2b(f"{seed}-{place}".encode(), digest_size=8).digest()
        heapq.heappush(held, (-int.from_bytes(mark, "big"), place, trace))
        if len(held) > n:
            heapq.heappop(held)
    return _distinct([trace for _, _, trace in sorted(held, key=lambda one: (-one[0], one[1]))])


def _distinct(traces: list[Trace]) -> list[Trace]:
    counts: dict[str, int] = {}
    named = []
    for trace in traces:
        count = counts[trace.id] = counts.get(trace.id, 0) + 1
        named.append(trace if count == 1 else replace(trace, id=f"{trace.id} ({count})"))
    return named
