"""Conversation + target -> blocks: one pass of the target, keeping only what the chosen anchors need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dlite.engine.prefix import PrefixCache
from dlite.errors import DataError, TargetError
from dlite.features.anchors import choose_anchors, labels, legal_anchors
from dlite.features.blocks import Blocks
from dlite.target.base import Cache, Target, TargetOutput
from dlite.types import Conversation


@dataclass(frozen=True)
class CaptureSettings:
    """What to capture. ``history`` positions before each pivot are for a teacher; a history-free drafter needs none."""

    taps: tuple[int, ...]
    K: int
    anchors_per_sequence: int = 512
    history: int = 0
    whole_blocks: bool = True
    max_length: int = 4096
    seed: int = 0
    chunk: int = 512


class Capturer:
    """Runs conversations through the target; prefixes that follow each other are computed once."""

    def __init__(self, target: Target, settings: CaptureSettings) -> None:
        self.target = target
        self.settings = settings
        self._last_tap = target.info.num_layers - 1
        self._prefix = PrefixCache(entries=1)
        self._cache: Cache | None = None
        self._checked = False

    def capture(self, conversation: Conversation, epoch: int = 0) -> Blocks | None:
        """Blocks of one conversation, None when it has no legal anchor. Errors: ``DataError`` for non-finite taps."""
        s = self.settings
        anchors = self.anchors(conversation, epoch)
        if not anchors:
            return None
        ids = conversation.ids[: self._length]
        first = max(0, anchors[0] - 1 - s.history)
        taps = self._run(ids, first)
        if not torch.isfinite(taps).all():
            raise DataError(
                f"conversation {conversation.id!r} gives taps that are not finite (NaN or infinity). Expected finite "
                "numbers. Run the target in float32 or bfloat16, or remove the conversation."
            )
        return self._pack(conversation, ids, anchors, first, taps)

    def anchors(self, conversation: Conversation, epoch: int = 0) -> list[int]:
        """The positions whose blocks ``capture`` gives."""
        s = self.settings
        legal = legal_anchors(conversation.wrote[: self._length], s.K, whole_blocks=s.whole_blocks)
        return choose_anchors(legal, s.anchors_per_sequence, f"{s.seed}-{epoch}-{conversation.id}")

    @property
    def _length(self) -> int:
        return min(self.settings.max_length, self.target.info.context_length)

    def _run(self, ids: Sequence[int], first: int) -> Tensor:
        """Taps, the last layer's appended, of positions ``first`` and on: [T-first,n+1,D]."""
        if self._cache is None:
            self._cache = self.target.new_cache(1, len(ids))
        cache, wanted = self._cache, (*self.settings.taps, self._last_tap)
        cache.reserve(len(ids))
        start = self._prefix.restore(ids[: first + 1], cache, 0)
        cache.lengths[0] = start
        captured = []
        while start < len(ids):
            end = min(start + self.settings.chunk, len(ids) if start >= first else first)
            tokens = torch.tensor([list(ids[start:end])])
            if start < first:
                self.target.forward(tokens, cache, 0, (), "last")
            else:
                output = self.target.forward(tokens, cache, 0, wanted, "taps")
                self._check(output)
                captured.append(output.taps[0])
            start = cache.lengths[0] = end
        if first > 256:  # long shared beginnings are worth keeping; short ones cost more to copy
            self._prefix.keep(ids[: first + 1], cache, 0)
        return torch.cat(captured)

    def _check(self, output: TargetOutput) -> None:
        """Once: p_target is made from the last tap, which must give the logits that the target itself gives."""
        if self._checked:
            return
        own, made = output.logits[0, -1], self.target.last_tap_logits(output.taps[0, -1, -1]).to(output.logits.device)
        distance = float((own.softmax(-1) - made.softmax(-1)).abs().sum())
        if not distance < 0.05:
            raise TargetError(
                f"{self.target.info.name}'s logits are not its output matrix times its normalised last layer (the two "
                f"distributions are {distance:.3f} apart). Expected a plain head, with or without a cap, bias or scale. "
                "Drafters cannot be trained for this target."
            )
        self._checked = True

    def _pack(
        self, conversation: Conversation, ids: Sequence[int], anchors: Sequence[int], first: int, taps: Tensor
    ) -> Blocks:
        K, history, end = self.settings.K, self.settings.history, len(ids)
        places = sorted({p for a in anchors for p in range(max(0, a - 1 - history), a)})
        predicting = sorted({p for a in anchors for p in range(a, min(a + K, end))})
        place_row, last_row = {p: i for i, p in enumerate(places)}, {p: i for i, p in enumerate(predicting)}
        words = [labels(conversation, a, K) for a in anchors]
        words = [w[: end - 1 - a] for a, w in zip(anchors, words, strict=True)]
        return Blocks(
            taps=taps[[p - first for p in places], :-1],
            place=torch.tensor(places),
            following=torch.tensor([ids[p + 1] for p in places]),
            last=taps[[p - first for p in predicting], -1],
            pivot=torch.tensor([place_row[a - 1] for a in anchors]),
            rows=torch.tensor([[last_row[min(a + i, end - 1)] for i in range(K)] for a in anchors]),
            anchor=torch.tensor([ids[a] for a in anchors]),
            before=torch.tensor([ids[a - 1] for a in anchors]),
            labels=torch.tensor([w + [0] * (K - len(w)) for w in words]),
            counted=torch.tensor([len(w) for w in words]),
        )
