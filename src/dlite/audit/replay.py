"""Replay turns: the history as logged, the next answer written by the target, plainly and with every arm in turn.

Each arm is a server of its own that keeps the key-values of its last request. Before a turn it is shown, off the clock,
what a server would have computed by then; then it answers. Then it answers again from nothing, to see what that saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dlite.audit.turns import Turn
from dlite.bench.check import Check, compare
from dlite.bench.run import PLAIN, Arm, rotated
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.engine.stats import is_looping
from dlite.sampling import SamplingParams
from dlite.target.base import Target
from dlite.types import Generation

Reuse = Literal["both", "on", "off"]
WARM_UP = 256  # prompt tokens of the dropped request that starts each arm


@dataclass(frozen=True)
class ReplaySettings:
    """How turns are replayed and judged.

    ``reuse``: measure with the prefix of the turn before kept ("on"), from nothing ("off"), or both.
    ``tie_gap``: how close two logits must be for a first difference to count as a near-tie.
    ``greedy_checks``: with a temperature, how many turns are also decoded greedily to check losslessness.
    """

    max_new_tokens: int = 128
    reuse: Reuse = "both"
    sampling: SamplingParams = field(default_factory=SamplingParams)
    tie_gap: float = 1e-4
    greedy_checks: int = 4
    prefill_chunk: int = 512

    @property
    def main(self) -> str:
        """The runs that the figures are made of: those with reuse where there are any."""
        return "off" if self.reuse == "off" else "on"


@dataclass(frozen=True)
class Trial:
    """One turn answered by one arm, with prefix reuse "on" or "off"; ``reused`` prompt tokens were not computed again."""

    turn: str
    arm: str
    reuse: str
    generation: Generation
    reused: int


@dataclass(frozen=True)
class Replay:
    """Everything that was measured; arms[0] is plain decoding. ``looping`` are turns whose plain answer repeats itself."""

    arms: tuple[Arm, ...]
    settings: ReplaySettings
    turns: tuple[Turn, ...]
    trials: tuple[Trial, ...]
    checks: tuple[Check, ...]
    looping: frozenset[str]
    interrupted: bool

    def lossless(self, arm: str) -> bool | None:
        """True when every comparison with plain decoding passed, None when none was made."""
        made = [check.passed for check in self.checks if check.arm == arm]
        return all(made) if made else True if arm == PLAIN else None


def replay(
    target: Target,
    arms: Sequence[Arm],
    turns: Sequence[Turn],
    settings: ReplaySettings,
    advance: Callable[[int, str], None] = lambda count, note: None,
) -> Replay:
    """Every turn with every arm (arms[0] plain), the arms in turn. Ctrl-C ends it after the last whole turn."""
    servers = {arm.name: _Server(target, arm, settings) for arm in arms}
    trials: list[Trial] = []
    checks: list[Check] = []
    looping: set[str] = set()
    done = 0
    try:
        for arm in arms:
            short = turns[0].ids[::-1][:WARM_UP]  # backwards: nobody should learn an answer
            servers[arm.name].answer(short, min(settings.max_new_tokens, 16), settings.sampling, keep=False)
        for index, turn in enumerate(turns):
            sampling = replace(settings.sampling, seed=settings.sampling.seed + index)
            found = [one for arm in rotated(arms, index) for one in servers[arm.name].trials(turn, sampling)]
            new = _compared(target, turn, found, sampling, settings) if sampling.greedy else []
            trials, checks, done = trials + found, checks + new, index + 1
            if is_looping(_plain(found).token_ids):
                looping.add(turn.id)
            advance(1, f"{len(turn.ids)} tokens")
        if not settings.sampling.greedy:
            checks += _greedy_checks(target, servers, turns[: settings.greedy_checks], settings)
    except KeyboardInterrupt:
        pass
    seen = tuple(turns[:done])
    return Replay(
        tuple(arms), settings, seen, tuple(trials), tuple(checks), frozenset(looping), interrupted=done < len(turns)
    )


class _Server:
    """One arm with what it keeps between requests."""

    def __init__(self, target: Target, arm: Arm, settings: ReplaySettings) -> None:
        self.target, self.arm, self.settings = target, arm, settings
        self.prefix = PrefixCache(entries=1)
        self.engine = self._engine(self.prefix)

    def trials(self, turn: Turn, sampling: SamplingParams) -> list[Trial]:
        """The turn as the settings want it measured."""
        limit, reuse, found = self.settings.max_new_tokens, self.settings.reuse, []
        if reuse != "off":
            if turn.before:
                self.answer(turn.before, 1, sampling)
            known = self.prefix.restored_tokens
            one = self.answer(turn.ids, limit, sampling)
            found.append(Trial(turn.id, self.arm.name, "on", one, self.prefix.restored_tokens - known))
        if reuse != "on":
            found.append(Trial(turn.id, self.arm.name, "off", self.answer(turn.ids, limit, sampling, keep=False), 0))
        return found

    def answer(self, ids: tuple[int, ...], limit: int, sampling: SamplingParams, *, keep: bool = True) -> Generation:
        """An answer, from what is kept or from nothing."""
        engine = self.engine if keep else self._engine(None)
        number = engine.submit(Request(ids, limit, self.arm.K, sampling))
        engine.run()
        return engine.result(number)

    def _engine(self, prefix: PrefixCache | None) -> Engine:
        chunk = self.settings.prefill_chunk
        return Engine(
            self.target, self.arm.drafter, max_batch=1, prefill_chunk=chunk, prefix=prefix, control=self.arm.control
        )


def _plain(found: Sequence[Trial]) -> Generation:
    return next(one.generation for one in found if one.arm == PLAIN)


def _compared(
    target: Target, turn: Turn, found: Sequence[Trial], sampling: SamplingParams, settings: ReplaySettings
) -> list[Check]:
    """Every answer to a turn against the first plain one, plain decoding's other one included."""
    plain, checks = _plain(found), []
    for one in found:
        if one.generation is not plain:
            difference = compare(
                target, turn.ids, plain.token_ids, one.generation.token_ids, sampling,
                tie_gap=settings.tie_gap, prefill_chunk=settings.prefill_chunk,
            )  # fmt: skip
            checks.append(Check(turn.id, one.arm, difference))
    return checks


def _greedy_checks(
    target: Target, servers: dict[str, _Server], turns: Sequence[Turn], settings: ReplaySettings
) -> list[Check]:
    """Sampled texts differ by chance, so losslessness is checked on greedy ones of the same run, at its end."""
    greedy = replace(settings.sampling, temperature=0.0)
    checks = []
    for turn in turns:
        found = [
            Trial(turn.id, name, "off", server.answer(turn.ids, settings.max_new_tokens, greedy, keep=False), 0)
            for name, server in servers.items()
        ]
        checks += _compared(target, turn, found, greedy, settings)
    return checks
