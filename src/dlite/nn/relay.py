"""DFlow's relay: what the target computed behind a wrong draft, handed to the next round's placeholders (2609.06498).

A rejected row at position p has seen a wrong context, but the target's state there still says much of position p + 1,
where the next round has a placeholder. What is wrong with it, the first rejected draft in place of the token that the
target wanted, is known: the relay is told both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlite.nn.past import Layers, PastMemory


class Relay(nn.Module):
    """scale * norm(s) + shift, both by channel from W_out silu(W_in [E(correction) ; E(first rejected) ; s] + b) + b.

    s is the context row that the rejected position would have had. W_out and its bias start as zero, so that an
    untrained relay adds nothing.
    """

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, eps=eps, elementwise_affine=False)
        self.inner = nn.Linear(3 * hidden_size, hidden_size)
        self.outer = nn.Linear(hidden_size, 2 * hidden_size)

    @torch.no_grad()
    def silence(self) -> None:
        """Add nothing."""
        self.outer.weight.zero_()
        self.outer.bias.zero_()

    def forward(self, correction: Tensor, rejected: Tensor, rows: Tensor) -> Tensor:
        """Words and rows [M,D] each -> what is added to the placeholders, [M,D]."""
        both = self.outer(F.silu(self.inner(torch.cat([correction, rejected, rows], -1))))
        scale, shift = both.chunk(2, -1)
        return scale * self.norm(rows) + shift  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Left:
    """What rounds left to the rounds after them: M placeholders with something to read.

    rows [M,D] context rows of rejected positions   block [M] of which block   slot [M] which placeholder, 1 the first
    rejected [M] the first rejected token of that block's last round
    """

    rows: Tensor
    block: Tensor
    slot: Tensor
    rejected: Tensor


def nothing_left(like: Tensor, hidden_size: int) -> Left:
    """No placeholder has anything to read. ``like`` gives the device and the dtype of rows."""
    none = torch.empty(0, dtype=torch.long, device=like.device)
    return Left(like.new_empty(0, hidden_size), none, none, none)


def join(parts: Sequence[Left]) -> Left:
    """Several as one."""
    return Left(*(torch.cat([getattr(part, name) for part in parts]) for name in ("rows", "block", "slot", "rejected")))


class RelayMemory(PastMemory):
    """A past, and for each request what its last round left. That is of the round alone: it is neither exported nor
    restored, so that a request that comes back after a preemption drafts its first round without it.

    Only drafts of the drafter's own count (``drafted``): not padding for a neighbour, nor what another one proposed.
    """

    def __init__(
        self, backbone: Layers, fuse: Callable[[Tensor], Tensor], rows: int, window: int | None = None
    ) -> None:
        super().__init__(backbone, fuse, rows, window)
        self.drafts: list[list[int]] = [[] for _ in range(rows)]
        self.context: list[Tensor | None] = [None] * rows
        self.rejected = [0] * rows

    def drafted(self, rows: Sequence[int], tokens: Tensor, counts: Sequence[int]) -> None:
        """These drafts [B,K] were proposed, of each row as many as count."""
        for row, drafts, count in zip(rows, tokens.tolist(), counts, strict=True):
            self.drafts[row] = drafts[:count]

    @torch.inference_mode()
    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """Keep what stands, and the context rows of the drafts behind it."""
        context = self.fuse(taps)
        self.append(first, context, kept)
        for b, (count, verified) in enumerate(zip(kept, tokens.tolist(), strict=True)):
            row, end = first + b, 1
            for ours, theirs in zip(self.drafts[row], verified[1:], strict=False):
                if ours != theirs:
                    break
                end += 1
            self.context[row] = context[b, count:end].clone() if count < end else None
            self.rejected[row] = verified[count] if count < end else 0
            self.drafts[row] = []

    def left(self, rows: Sequence[int]) -> Left:
        """What the last rounds of these requests left."""
        parts = [nothing_left(next(self.backbone.parameters()), self.backbone.config.hidden_size)]
        for b, row in enumerate(rows):
            context = self.context[row]
            if context is not None:
                slot = torch.arange(1, len(context) + 1, device=context.device)
                parts.append(Left(context, torch.full_like(slot, b), slot, torch.full_like(slot, self.rejected[row])))
        return join(parts)

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row."""
        super().clear(row, tokens, prompt)
        self.context[row], self.rejected[row], self.drafts[row] = None, 0, []

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        super().move(source, row)
        self.context[row], self.rejected[row] = self.context[source], self.rejected[source]
        self.drafts[row] = self.drafts[source]

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""
        context = self.context[row]
        return super().bytes(row) + (0 if context is None else context.numel() * context.element_size())
