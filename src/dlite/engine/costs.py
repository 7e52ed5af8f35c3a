"""What rounds cost, learned while they run: running medians of seconds by the number of rows and of drafts."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from statistics import median

WINDOW = 15  # newest measurements a median is taken of
SLOPE = 0.05  # prior: what one more row or draft adds, as a share of a pass with none
SPAN = 512  # tokens of context in the first span; each further span is twice as long


class Curve:
    """Seconds by a count, from running medians. Between and beyond what was seen it follows a line of ``slope``.

    ``at`` scales that line by the ratio of medians to it, interpolated between the counts seen.
    """

    def __init__(self, slope: float = SLOPE) -> None:
        self.slope = slope
        self._seen: dict[int, deque[float]] = {}

    def note(self, count: int, seconds: float) -> None:
        """Take in a measurement."""
        self._seen.setdefault(count, deque(maxlen=WINDOW)).append(seconds)

    def at(self, count: int) -> float:
        """Expected seconds; 0 as long as nothing was measured."""
        known = sorted(self._seen)
        if not known:
            return 0.0
        place = bisect_left(known, count)
        low, high = known[max(0, place - 1)], known[min(place, len(known) - 1)]
        share = (min(max(count, low), high) - low) / (high - low) if high > low else 0.0
        return ((1 - share) * self._ratio(low) + share * self._ratio(high)) * self._line(count)

    def _ratio(self, count: int) -> float:
        return median(self._seen[count]) / self._line(count)

    def _line(self, count: int) -> float:
        return 1 + self.slope * count


class Costs:
    """Seconds of a verification pass by rows, for each number of requests and span of context lengths; and of drafting
    by drafts, for each number of requests and source of the drafts."""

    def __init__(self, slope: float = SLOPE) -> None:
        self.slope = slope
        self._verify: dict[tuple[int, int], Curve] = {}
        self._draft: dict[tuple[int, str], Curve] = {}

    def note_verify(self, requests: int, context: int, drafts: int, seconds: float) -> None:
        """A pass of ``requests`` rows of the batch with 1 + ``drafts`` tokens each took so long."""
        self._verify.setdefault((requests, span(context)), Curve(self.slope)).note(drafts, seconds)

    def note_draft(self, requests: int, source: str, drafts: int, seconds: float) -> None:
        """Making ``drafts`` drafts for each of ``requests`` requests took so long."""
        self._draft.setdefault((requests, source), Curve(self.slope)).note(drafts, seconds)

    def verify(self, requests: int, context: int, drafts: int) -> float:
        """Expected seconds of a pass; 0 before any was measured. An unseen batch or span costs what the nearest does."""
        if not self._verify:
            return 0.0
        nearest = min(self._verify, key=lambda key: (abs(key[0] - requests), abs(key[1] - span(context))))
        return self._verify[nearest].at(drafts)

    def draft(self, requests: int, source: str, drafts: int) -> float:
        """Expected seconds of drafting; 0 before any was measured and for no drafts."""
        known = [key for key in self._draft if key[1] == source]
        if not known or not drafts:
            return 0.0
        return self._draft[min(known, key=lambda key: abs(key[0] - requests))].at(drafts)


def span(context: int) -> int:
    """The span of context lengths: 0 up to 512 tokens, 1 up to 1024, 2 up to 2048, ..."""
    return max(0, (context - 1) // SPAN).bit_length()
