"""What was left out of a log, by reason, with the first places: nothing disappears unseen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

EXAMPLES = 3


@dataclass
class Skipped:
    """A count for each reason and the first places where it was met. Reasons hold nothing of the log's contents."""

    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def note(self, reason: str, place: str, count: int = 1) -> None:
        """Count something that is left out."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        places = self.places.setdefault(reason, [])
        if len(places) < EXAMPLES:
            places.append(place)

    @property
    def total(self) -> int:
        """How much was left out, all reasons together."""
        return sum(self.counts.values())

    def to_json(self) -> list[dict[str, Any]]:
        """The most frequent reason first."""
        order = sorted(self.counts, key=lambda reason: (-self.counts[reason], reason))
        return [{"reason": r, "count": self.counts[r], "places": self.places[r]} for r in order]

    def sentence(self) -> str:
        """'3 not JSON (a.jsonl, line 2), 1 ...', or '' for nothing."""
        return ", ".join(f"{one['count']} {one['reason']} ({one['places'][0]})" for one in self.to_json())
