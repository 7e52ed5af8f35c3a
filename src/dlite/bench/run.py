"""Run every arm on every call, one request at a time, the arms in turn: what is compared was measured side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dlite.bench.check import Check, compare
from dlite.bench.suites import Call, Render
from dlite.data.chat import Message
from dlite.drafters.base import Drafter
from dlite.drafters.none import NoDrafter
from dlite.engine.control import Control
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.engine.stats import is_looping
from dlite.errors import ConfigError, DataError
from dlite.sampling import SamplingParams
from dlite.target.base import Target, TargetInfo
from dlite.types import Generation

PLAIN = "plain"


@dataclass(frozen=True)
class Arm:
    """One way of decoding: a drafter with K drafts a round (None: all it can). Several K are several arms.

    With a ``control``, K is the most; what it learns of costs it keeps from call to call.
    """

    name: str
    drafter: Drafter
    K: int | None = None
    control: Control | None = None


@dataclass(frozen=True)
class BenchSettings:
    """How a run is made and judged.

    ``tie_gap``: how close two logits must be for a first difference to count as a near-tie (1e-4 suits fp32).
    ``greedy_checks``: with a temperature, how many calls are also decoded greedily to check losslessness.
    ``warmup_tokens``: length of the dropped call that starts each arm.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    include_loops: bool = False
    tie_gap: float = 1e-4
    greedy_checks: int = 4
    warmup_tokens: int = 16
    prefill_chunk: int = 512
    seed: int = 0
    resamples: int = 1000


@dataclass(frozen=True)
class Trial:
    """One call decoded by one arm. ``looping`` says that plain decoding of this call ended in repetition."""

    call: str
    workload: str
    arm: str
    generation: Generation
    looping: bool


@dataclass(frozen=True)
class BenchResult:
    """Everything that was measured, in the order it was run; arms[0] is plain decoding."""

    target: TargetInfo
    arms: tuple[Arm, ...]
    settings: BenchSettings
    trials: tuple[Trial, ...]
    checks: tuple[Check, ...]
    skipped: tuple[tuple[str, str], ...]  # (call id, reason)

    def lossless(self, arm: str) -> bool | None:
        """True when every comparison with plain decoding passed, None when none was made."""
        made = [check.passed for check in self.checks if check.arm == arm]
        return True if arm == PLAIN else all(made) if made else None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a run; ``result`` holds the calls that every arm had decoded by then, at least one."""

    def __init__(self, result: BenchResult) -> None:
        super().__init__()
        self.result = result


def run(
    target: Target,
    arms: Sequence[Arm],
    calls: Sequence[Call],
    *,
    render: Render | None = None,
    settings: BenchSettings | None = None,
    progress: bool = False,
) -> BenchResult:
    """Decode every call with plain decoding and with every arm, single requests, order rotated call by call.

    ``render`` turns the messages of a call into token ids; calls that carry ids need none. A call too long for the
    target is skipped and named in the result. Errors: ``ConfigError`` for arms, ``DataError`` for calls;
    ``Interrupted`` instead of a KeyboardInterrupt that comes when there is something to show.
    """
    settings = settings or BenchSettings()
    lanes = (Arm(PLAIN, NoDrafter()), *arms)
    _check_arms(lanes)
    _check_calls(calls, render)
    bench = _Bench(target, lanes, settings, render)
    bench.warm_up(calls[0])
    try:
        bench.measure_all(calls, progress=progress)
    except KeyboardInterrupt:
        if bench.trials:
            raise Interrupted(bench.result()) from None
        raise
    return bench.result()


def rotated(arms: Sequence[Arm], index: int) -> list[Arm]:
    """The order of the arms for call number ``index``: each arm comes first equally often."""
    shift = index % len(arms)
    return [*arms[shift:], *arms[:shift]]


class _Bench:
    """A run in progress."""

    def __init__(self, target: Target, lanes: tuple[Arm, ...], settings: BenchSettings, render: Render | None) -> None:
        self.target, self.lanes, self.settings, self.render = target, lanes, settings, render
        self.histories: dict[str, list[Message]] = {}  # per call: its messages and the plain answer
        self.trials: list[Trial] = []
        self.checks: list[Check] = []
        self.skipped: list[tuple[str, str]] = []

    def warm_up(self, call: Call) -> None:
        """Lazily built things are built here and not on the clock. Backwards: the drafter must not learn an answer."""
        ids = self._prompt(call)[1][::-1][: self.target.info.context_length // 2]
        short = replace(call, max_new_tokens=min(call.max_new_tokens, self.settings.warmup_tokens))
        for arm in self.lanes:
            self._decode(arm, short, ids, self.settings.sampling)

    def measure_all(self, calls: Sequence[Call], *, progress: bool) -> None:
        """Every call, then the checks that a sampled run needs."""
        with _ticker(len(calls), progress) as tick:
            for index, call in enumerate(calls):
                self.measure(call, index)
                tick(call)
        if not self.trials:
            info = self.target.info
            raise DataError(
                f"none of {len(calls)} calls could be run; the first: {self.skipped[0][1]} Expected calls that fit "
                f"{info.name}'s context of {info.context_length} tokens. Choose shorter ones."
            )
        if not self.settings.sampling.greedy:
            # Last, so that a drafter that learns from past requests has not seen these answers.
            self.check_greedily([call for call in calls if call.follows is None][: self.settings.greedy_checks])

    def result(self) -> BenchResult:
        """What was measured so far."""
        found = (tuple(self.trials), tuple(self.checks), tuple(self.skipped))
        return BenchResult(self.target.info, self.lanes, self.settings, *found)

    def check_greedily(self, calls: Sequence[Call]) -> None:
        """Sampled texts differ by chance, so losslessness is checked on greedy ones of the same run."""
        greedy = replace(self.settings.sampling, temperature=0.0)
        for call in calls:
            ids = self._prompt(call)[1]
            if len(ids) < self.target.info.context_length:
                found = {arm.name: self._decode(arm, call, ids, greedy) for arm in self.lanes}
                self.checks += self._compare(call, ids, found, greedy)

    def measure(self, call: Call, index: int) -> None:
        """One call with every arm; then the comparison, off the clock."""
        if call.follows is not None and call.follows not in self.histories:
            self.skipped.append((call.id, f"the call it follows, {call.follows}, was skipped."))
            return
        messages, ids = self._prompt(call)
        if len(ids) >= self.target.info.context_length:
            self.skipped.append((call.id, f"the prompt has {len(ids)} tokens."))
            return
        sampling = replace(self.settings.sampling, seed=self.settings.sampling.seed + index)
        found = {arm.name: self._decode(arm, call, ids, sampling) for arm in rotated(self.lanes, index)}
        looping = is_looping(found[PLAIN].token_ids)
        checks = self._compare(call, ids, found, sampling) if sampling.greedy else []
        self.checks += checks  # together with the trials, at the end: an interrupted call leaves nothing
        self.trials += [Trial(call.id, call.workload, name, one, looping) for name, one in found.items()]
        self.histories[call.id] = [*messages, {"role": "assistant", "content": found[PLAIN].text}]

    def _prompt(self, call: Call) -> tuple[list[Message], tuple[int, ...]]:
        messages = [*(self.histories[call.follows] if call.follows else ()), *call.messages]
        if call.ids or self.render is None:
            return messages, call.ids
        return messages, tuple(self.render(self.target.tokenizer, messages, call.tools))

    def _decode(self, arm: Arm, call: Call, ids: tuple[int, ...], sampling: SamplingParams) -> Generation:
        # A fresh engine: every arm starts with an empty cache of the size this call needs.
        engine = Engine(
            self.target, arm.drafter, max_batch=1, prefill_chunk=self.settings.prefill_chunk, control=arm.control
        )
        number = engine.submit(Request(ids, call.max_new_tokens, arm.K, sampling))
        engine.run()
        return engine.result(number)

    def _compare(
        self, call: Call, ids: tuple[int, ...], found: dict[str, Generation], sampling: SamplingParams
    ) -> list[Check]:
        checks = []
        for arm in self.lanes[1:]:
            difference = compare(
                self.target, ids, found[PLAIN].token_ids, found[arm.name].token_ids, sampling,
                tie_gap=self.settings.tie_gap, prefill_chunk=self.settings.prefill_chunk,
            )  # fmt: skip
            checks.append(Check(call.id, arm.name, difference))
        return checks


def _check_arms(lanes: Sequence[Arm]) -> None:
    names = [arm.name for arm in lanes]
    for arm in lanes[1:]:
        if names.count(arm.name) > 1:
            raise ConfigError(
                f"there are {names.count(arm.name)} arms named {arm.name!r}. Expected distinct names, and {PLAIN!r} is "
                "always there. Rename one."
            )
        most = arm.drafter.max_drafts
        if arm.K is not None and not 1 <= arm.K <= most:
            raise ConfigError(
                f"arm {arm.name!r} has K = {arm.K}. Its drafter proposes 1 to {most} drafts. Choose one of these."
            )


def _check_calls(calls: Sequence[Call], render: Render | None) -> None:
    if not calls:
        raise DataError("there are no calls. Expected at least one. Give a workload.")
    seen: set[str] = set()
    for call in calls:
        if call.id in seen:
            raise DataError(
                f"two calls are named {call.id!r}. Expected distinct ids. Give the workloads distinct names."
            )
        if call.follows is not None and call.follows not in seen:
            raise DataError(f"call {call.id} follows {call.follows}, which is not before it. Keep conversations whole.")
        if call.max_new_tokens < 1:
            raise DataError(
                f"call {call.id} asks for {call.max_new_tokens} tokens. Expected 1 or more. Raise its limit."
            )
        if not call.ids and (render is None or not call.messages):
            raise DataError(
                f"call {call.id} has no token ids and cannot be rendered. Expected ids, or messages and render."
            )
        seen.add(call.id)


@contextmanager
def _ticker(total: int, show: bool) -> Iterator[Any]:
    """A function to call after each call; a progress bar on standard error if wanted."""
    if not show:
        yield lambda call: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("bench", total=total)
        yield lambda call: bar.update(task, advance=1, description=call.workload)
