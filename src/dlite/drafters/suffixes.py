"""How often every stretch of a text was followed by what, kept while the text grows: what a suffix tree with counts holds.

A suffix automaton (as in 2411.10666) stands for the tree of 2411.04975: at most two states a token, and a few steps to
append one. A state is all stretches that end at the same places, so the places are counted once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof

DEPTH = 64  # tokens of match and drafts together: longer stretches are not counted
FACTOR = 1.0  # drafts per token of the match
LEAST = 0.1  # a path of lower probability is not followed


@dataclass(frozen=True)
class Path:
    """Drafts and their score: how many of them the counts expect to be accepted, the sum of the path's probabilities.

    ``chances``: how often each draft followed those before it.
    """

    tokens: Sequence[int]
    score: float
    chances: Sequence[float] = ()


class Suffixes:
    """A text and its stretches of up to ``DEPTH`` tokens. Negative tokens end a text: no path leads over them.

    Of state s: ``after[s]`` the states one token on, ``length[s]`` the longest stretch, ``link[s]`` the state of the
    longest end of it that stands in more places, ``count[s]`` how many places there are, ``followed[s]`` after how many
    of them the text went on, and ``likely[s]`` the token that came there most often, of equals the most recent (-1: none).
    State 0 is the empty stretch.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.after: list[dict[int, int]] = [{}]
        self.length, self.link = [0], [-1]
        self.count, self.followed, self.likely = [0], [0], [-1]
        self._whole = 0  # the state of the whole text
        self._deep = 0  # the state of its last DEPTH tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._append(token)

    def best(self, recent: Sequence[int], K: int) -> Path:
        """The drafts of the highest score over all matches of the end of ``recent``.

        A match of n tokens gives up to FACTOR * n drafts, the likeliest token each time. Of equal scores that wins which
        might have given more drafts, then the longer match.
        """
        matches, (state, size) = [], self.match(recent)
        while state:
            shortest = self.length[self.link[state]] + 1
            matches.append((max(min(K, int(FACTOR * n), DEPTH - n) for n in range(shortest, size + 1)), state))
            state = self.link[state]
            size = self.length[state]
        found = Path((), 0.0)
        for limit, state in sorted(matches, key=lambda match: -match[0]):
            if limit <= found.score:  # a draft adds at most 1
                break
            found = max(found, self.path(state, limit, found.score), key=lambda path: path.score)
        return found

    def match(self, recent: Sequence[int]) -> tuple[int, int]:
        """The longest end of ``recent``, of up to ``DEPTH`` tokens, that stands in the text: its state and its size."""
        state = size = 0
        for token in recent[-DEPTH:]:
            while state and token not in self.after[state]:
                state = self.link[state]
                size = self.length[state]
            if token in self.after[state]:
                state, size = self.after[state][token], size + 1
        return state, size

    def path(self, state: int, limit: int, beat: float = 0.0) -> Path:
        """From a state along the likeliest tokens, as long as the score may still exceed ``beat``.

        What ends a text is no continuation and not counted.
        """
        tokens: list[int] = []
        chances: list[float] = []
        score, prob = 0.0, 1.0
        while len(tokens) < limit and score + prob * (limit - len(tokens)) > beat:
            token = self.likely[state]
            if token < 0:
                break
            times, state = self.followed[state], self.after[state][token]
            chance = self.count[state] / times
            prob *= chance
            if prob < LEAST:
                break
            tokens.append(token)
            chances.append(chance)
            score += prob
        return Path(tokens, score, chances)

    def bytes(self) -> int:
        """Bytes of the text and the states."""
        lists = (self.length, self.link, self.count, self.followed, self.likely)
        numbers = sum(getsizeof(values) + 28 * len(values) for values in (self.ids, *lists))
        return numbers + getsizeof(self.after) + sum(map(getsizeof, self.after))

    def _append(self, token: int) -> None:
        after, length, link = self.after, self.length, self.link
        self.ids.append(token)
        new = self._state({}, len(self.ids), 0, None)
        state = self._whole
        while state >= 0 and token not in after[state]:
            after[state][token] = new
            state = link[state]
        if state >= 0:
            link[new] = self._split(state, token)
        self._whole, before, deep = new, self._deep, after[self._deep][token]
        while length[link[deep]] >= DEPTH:
            deep = link[deep]
        self._deep = deep
        self._count(before, deep, token)

    def _count(self, before: int, deep: int, token: int) -> None:
        """The ends of the text, up to DEPTH tokens, stand in one place more; what ended it ``before`` was followed."""
        after, count, link, likely = self.after, self.count, self.link, self.likely
        while deep:
            count[deep] += 1
            deep = link[deep]
        while before and token >= 0:
            self.followed[before] += 1
            best = likely[before]
            if best < 0 or count[after[before][token]] >= count[after[before][best]]:
                likely[before] = token
            before = link[before]

    def _split(self, state: int, token: int) -> int:
        """The state of ``state``'s longest stretch with ``token`` behind it, parted from longer ones if need be."""
        after, length, link = self.after, self.length, self.link
        old = after[state][token]
        if length[old] == length[state] + 1:
            return old
        part = self._state(after[old].copy(), length[state] + 1, link[old], old)
        link[old] = part
        while state >= 0 and after[state].get(token) == old:
            after[state][token] = part
            state = link[state]
        return part

    def _state(self, after: dict[int, int], length: int, link: int, like: int | None) -> int:
        """A new state, with the counts of another."""
        self.after.append(after)
        self.length.append(length)
        self.link.append(link)
        self.count.append(0 if like is None else self.count[like])
        self.followed.append(0 if like is None else self.followed[like])
        self.likely.append(-1 if like is None else self.likely[like])
        return len(self.after) - 1
