from __future__ import annotations

import pytest

from dlite.bench.run import Arm, BenchResult, BenchSettings, run
from dlite.target.toy import ToyTarget

from .support import Guesser, LyingTarget, make_calls, make_dlite


@pytest.fixture
def target() -> ToyTarget:
    return ToyTarget(sharpness=4.0, stop=False, context_length=1500)


@pytest.fixture
def lying_target() -> LyingTarget:
    return LyingTarget(sharpness=4.0, stop=False, context_length=1500)


@pytest.fixture
def arms(target: ToyTarget) -> list[Arm]:
    drafter = make_dlite(target)
    return [Arm("dlite K=2", drafter, 2), Arm("dlite K=4", drafter), Arm("guesser", Guesser(target))]


@pytest.fixture(scope="session")
def result() -> BenchResult:
    """A run over two workloads and two spans of context lengths."""
    target = ToyTarget(sharpness=4.0, stop=False, context_length=1500)
    arms = [Arm("dlite K=2", make_dlite(target), 2), Arm("guesser", Guesser(target))]
    calls = [*make_calls("short", 4), *make_calls("long", 2, length=1100)]
    return run(target, arms, calls, settings=BenchSettings(seed=3))


@pytest.fixture(scope="session")
def failed_result() -> BenchResult:
    """A run whose only drafter arm fails the losslessness check."""
    target = LyingTarget(sharpness=4.0, stop=False)
    target.off = 100.0
    return run(target, [Arm("guesser", Guesser(target))], make_calls("short", 3))
