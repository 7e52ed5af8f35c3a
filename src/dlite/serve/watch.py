"""Listening to a network at work: what passes through the parts that all drafters share, without changing them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dlite.drafters.base import Chooser

Seen = dict[str, list[Tensor]]


@contextmanager
def watch(network: Any, base: Tensor) -> Iterator[Seen]:
    """What the backbone, the layout and the draft vocabulary of a network handle meanwhile.

    ``base`` [N] is taken off all positions: the anchor's own where they are global, else 0.
    """
    seen: Seen = defaultdict(list)
    body = next((m for m in network.modules() if "_backbone" in vars(m)), None)
    undo = []
    if body is not None:
        backbone = vars(body)["_backbone"][0]
        handle = backbone.register_forward_hook(lambda module, args, out: _note(seen, module, args, out, base))
        undo += [
            handle.remove,
            _exchange(body, "layout", _Layout(body.layout, seen)),
            _exchange(network.vocab, "to_rows", _rows(network.vocab.to_rows, seen)),
        ]
    try:
        yield seen
    finally:
        for step in undo:
            step()


class Told:
    """A chooser that keeps the logits and the best token of each slot, and answers with the script's tokens [1,K]."""

    def __init__(self, answers: Tensor) -> None:
        self.answers = answers
        self.logits: list[Tensor] = []
        self.best: list[Tensor] = []

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """The script's token for this slot."""
        self.logits.append(logits.clone())
        best = logits.argmax(-1)
        self.best.append(best if ids is None else ids[best])
        return self.answers[:, slot]

    def select(self, index: Sequence[int]) -> Chooser:
        """For some of the rows; what it is told, this one keeps too."""
        some = Told(self.answers[list(index)])
        some.logits, some.best = self.logits, self.best
        return some


class _Layout:
    """A layout, with the rows it takes for the drafts."""

    def __init__(self, inner: Any, seen: Seen) -> None:
        self._inner, self._seen = inner, seen

    def drafts(self, hidden: Tensor) -> Tensor:
        rows: Tensor = self._inner.drafts(hidden)
        self._seen["slots"].append(rows)
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _rows(inner: Any, seen: Seen) -> Any:
    def to_rows(tokens: Tensor) -> Tensor:
        rows: Tensor = inner(tokens)
        seen["rows"].append(rows.reshape(len(rows), -1))
        return rows

    return to_rows


def _note(seen: Seen, backbone: Any, args: tuple[Any, ...], out: Tensor, base: Tensor) -> None:
    queries, positions, context, past = (*args, None)[:4]
    places = [positions.expand(len(queries), -1)]
    if context is not None:
        seen["context"].append(context.rows)
        places.insert(0, context.positions.expand(len(queries), -1))
    seen["queries"].append(queries)
    seen["positions"].append(torch.cat(places, 1) - base[:, None])
    seen["hidden"].append(out)
    if past is not None:
        _, values = past.keys_values(0, backbone.layers[0].self_attn)
        count = past.mask.sum(1)
        total = values.masked_fill(~past.mask[:, None, :, None], 0).sum(2).flatten(1)
        seen["history"].append(torch.cat([count[:, None], total / count.clamp_min(1)[:, None]], 1))


def _exchange(owner: Any, name: str, value: Any) -> Any:
    """Put ``value`` into an object and return what puts the old one back."""
    own = vars(owner)
    had, old = name in own, own.get(name)
    setattr(owner, name, value)

    def back() -> None:
        if had:
            setattr(owner, name, old)
        else:
            delattr(owner, name)

    return back
