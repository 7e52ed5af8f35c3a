"""Anchors, labels and history windows as plain loops: what the fast ones must equal."""

from __future__ import annotations

from collections.abc import Sequence


def legal_anchors(wrote: Sequence[bool], K: int, *, whole_blocks: bool) -> list[int]:
    """An anchor has a pivot before it, is written, and so is the token after it."""
    found = []
    for a in range(len(wrote)):
        has_pivot, has_label = a - 1 >= 0, a + 1 < len(wrote)
        fits = a + K < len(wrote) or not whole_blocks
        if has_pivot and has_label and fits and wrote[a] and wrote[a + 1]:
            found.append(a)
    return found


def labels(ids: Sequence[int], wrote: Sequence[bool], anchor: int, K: int) -> list[int]:
    """Tokens after the anchor until the first one that the target did not write."""
    found: list[int] = []
    for i in range(1, K + 1):
        if anchor + i >= len(ids) or not wrote[anchor + i]:
            break
        found.append(ids[anchor + i])
    return found


def window(rows: Sequence[tuple[int, int]], pivot: int, width: int) -> list[tuple[int, int]]:
    """(row, distance to the anchor) of the ``width`` positions before a pivot; rows are (conversation, position)."""
    found: list[tuple[int, int]] = []
    conversation, place = rows[pivot]
    for back in range(width, 0, -1):
        for row, (owner, position) in enumerate(rows):
            if owner == conversation and position == place - back:
                found.append((row, back + 1))
    return found
