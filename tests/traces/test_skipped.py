from __future__ import annotations

from dlite.traces.skipped import EXAMPLES, Skipped


def test_reasons_are_counted_with_their_first_places() -> None:
    skipped = Skipped()
    for line in range(9):
        skipped.note("not JSON", f"a, line {line}")
    skipped.note("too long", "b", 20)
    assert skipped.total == 29
    assert skipped.to_json() == [
        {"reason": "too long", "count": 20, "places": ["b"]},
        {"reason": "not JSON", "count": 9, "places": [f"a, line {line}" for line in range(EXAMPLES)]},
    ]
    assert skipped.sentence() == "20 too long (b), 9 not JSON (a, line 0)"
    assert Skipped().sentence() == ""
