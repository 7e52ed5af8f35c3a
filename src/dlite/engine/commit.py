"""New tokens of a request: up to the first that ends it, with the text that they settle."""

from __future__ import annotations

from collections.abc import Sequence

from dlite.engine.request import Active, Event
from dlite.target.base import TargetInfo


def commit(row: Active, tokens: Sequence[int], accepted: int, info: TargetInfo) -> Event:
    """Append ``tokens``, of which the first ``accepted`` were drafts; the event holds those that were kept.

    A stop token is kept without its text; a stop string cuts the text before it. ``row.finish`` says how it ended.
    """
    stops = info.stop_ids if row.request.stop_ids is None else row.request.stop_ids
    pieces: list[tuple[str, bool]] = []
    for count, token in enumerate(tokens, start=1):
        row.tokens.append(token)
        before = len(row.text)
        ended = token in stops
        if not ended:
            row.text += row.stream.push(token)
        row.finish = "stop" if ended or _stop_string(row, before) else _out_of_room(row, info.context_length)
        if row.finish:
            row.text += row.stream.flush() if row.finish != "stop" else ""
        pieces.append((settled(row), count <= accepted))
        if row.finish:
            break
    kept = tuple(tokens[: len(pieces)])
    return Event(row.id, kept, min(accepted, len(kept)), tuple(pieces), row.finish)


def settled(row: Active) -> str:
    """Text not yet sent, short of what might turn out to be the beginning of a stop string; now it counts as sent."""
    held = 0 if row.finish else max(map(len, row.request.stop_strings), default=1) - 1
    text = row.text[row.sent : max(row.sent, len(row.text) - held)]
    row.sent += len(text)
    return text


def _stop_string(row: Active, searched: int) -> bool:
    longest = max(map(len, row.request.stop_strings), default=0)
    found = [row.text.find(s, max(0, searched - longest)) for s in row.request.stop_strings]
    hits = [at for at in found if at >= 0]
    if hits:
        row.text = row.text[: min(hits)]
    return bool(hits)


def _out_of_room(row: Active, context_length: int) -> str | None:
    if row.room(context_length) > 0:
        return None
    return "length" if row.produced >= row.request.max_new_tokens else "context"
