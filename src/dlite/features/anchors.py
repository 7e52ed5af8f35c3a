"""Where training blocks may stand, and what they are trained to say.

An anchor a is legal when the target wrote both a and a+1; its labels run on while every token was written by the
target without a gap (never across a turn), so a position counts only if all earlier ones of its block do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from dlite.types import Conversation


def legal_anchors(wrote: Sequence[bool], K: int, *, whole_blocks: bool) -> list[int]:
    """Positions a >= 1 with a and a+1 written; ``whole_blocks`` also asks for K more positions in the sequence."""
    last = len(wrote) - (K if whole_blocks else 1)
    return [a for a in range(1, last) if wrote[a] and wrote[a + 1]]


def choose_anchors(anchors: Sequence[int], limit: int, key: str) -> list[int]:
    """At most ``limit`` of them without replacement, in order, the same for the same key."""
    if len(anchors) <= limit:
        return list(anchors)
    return sorted(random.Random(key).sample(list(anchors), limit))


def labels(conversation: Conversation, anchor: int, K: int) -> list[int]:
    """Tokens a+1.. that count for this anchor, at most K: the contiguous written prefix."""
    end = anchor + 1
    while end < min(anchor + K + 1, len(conversation.ids)) and conversation.wrote[end]:
        end += 1
    return list(conversation.ids[anchor + 1 : end])
