"""The drafters that copy, as plain loops over the whole text: what the indexed ones must equal."""

from __future__ import annotations

from collections.abc import Sequence


def ngram(text: Sequence[int], K: int, longest: int = 3) -> list[int]:
    """Up to K tokens after the most recent place where the last ``longest`` tokens stood, else fewer of them."""
    for size in range(longest, 0, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if len(text) >= size and list(text[end - size : end]) == list(text[-size:]):
                return list(text[end : end + K])
    return []


def suffix(
    texts: Sequence[Sequence[int]], recent: Sequence[int], K: int, *, depth: int, factor: float, least: float
) -> tuple[list[int], float]:
    """(drafts, score) of the best match of the end of ``recent`` in some texts, over all match lengths.

    Of equal scores the one that might have given more drafts, then the longer match.
    """
    found: list[tuple[float, int, int, list[int]]] = []
    for size in range(1, min(depth, len(recent)) + 1):
        known, limit = list(recent[-size:]), min(K, int(factor * size), depth - size)
        drafts: list[int] = []
        score, prob = 0.0, 1.0
        while len(drafts) < limit:
            token, share = likeliest(texts, known + drafts)
            prob *= share
            if prob == 0 or prob < least:
                break
            drafts.append(token)
            score += prob
        found.append((score, limit, size, drafts))
    score, _, _, drafts = max(found, default=(0.0, 0, 0, []))
    return drafts, score


def likeliest(texts: Sequence[Sequence[int]], known: Sequence[int]) -> tuple[int, float]:
    """What followed ``known`` most often, of equals the most recent, and its share; (0, 0.0) where nothing did."""
    followed = []
    for text in texts:
        for end in range(len(known), len(text)):
            if list(text[end - len(known) : end]) == list(known):
                followed.append(text[end])
    if not followed:
        return 0, 0.0
    most = max(map(followed.count, followed))
    token = next(t for t in reversed(followed) if followed.count(t) == most)
    return token, most / len(followed)
