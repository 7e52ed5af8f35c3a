"""The three rules as plain loops over one row: what the fast ones must equal, and what the documentation quotes."""

from __future__ import annotations

from collections.abc import Sequence

Law = Sequence[float]


def match(own: Sequence[int], drafts: Sequence[int]) -> tuple[int, int]:
    """(accepted, next token): own has one choice more than there are drafts."""
    for i, token in enumerate(drafts):
        if token != own[i]:
            return i, own[i]
    return len(drafts), own[len(drafts)]


def rejection(p: Sequence[Law], drafts: Sequence[int], q: Sequence[Law], u: Sequence[float]) -> tuple[int, int]:
    """(accepted, next token): u has one coin a draft, then the coin that draws."""
    for i, token in enumerate(drafts):
        if not u[i] * q[i][token] < p[i][token]:
            residual = [max(a - b, 0.0) for a, b in zip(p[i], q[i], strict=True)]
            return i, draw(residual if any(residual) else p[i], u[-1])
    return len(drafts), draw(p[len(drafts)], u[-1])


def block(p: Sequence[Law], drafts: Sequence[int], q: Sequence[Law], u: Sequence[float]) -> tuple[int, int]:
    """(accepted, next token), Algorithm 2 of 2403.10444."""
    count, weight, accepted = len(drafts), 1.0, 0
    residual = [max(a - b, 0.0) for a, b in zip(p[0], q[0], strict=True)] if count else list(p[0])
    for i, token in enumerate(drafts, start=1):
        weight = min(1.0, weight * p[i - 1][token] / q[i - 1][token]) if q[i - 1][token] else 1.0
        if i == count:
            left, passes = list(p[i]), weight
        else:
            left = [max(weight * a - b, 0.0) for a, b in zip(p[i], q[i], strict=True)]
            mass = sum(left)
            passes = 1.0 if weight == 1 and mass == 0 else mass / (mass + 1 - weight)
        if u[i - 1] < passes:
            accepted, residual = i, left
    return accepted, draw(residual if any(residual) else p[accepted], u[-1])


def draw(weights: Law, u: float) -> int:
    """The first token whose cumulative weight exceeds u times the total."""
    level, total = u * sum(weights), 0.0
    for token, weight in enumerate(weights):
        total += weight
        if weight > 0 and level < total:
            return token
    return max(token for token, weight in enumerate(weights) if weight > 0)
