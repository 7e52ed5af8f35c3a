from __future__ import annotations

from typing import Any

import pytest

from dlite.audit.memory import footprints
from dlite.audit.replay import Replay
from dlite.audit.report import Judging, Reading, Report, replay_report
from dlite.traces.skipped import Skipped

from .support import costs_of, make_replay, talker


@pytest.fixture(scope="session")
def target() -> Any:
    return talker()


@pytest.fixture(scope="session")
def done(target: Any) -> Replay:
    return make_replay(target)


@pytest.fixture(scope="session")
def report(target: Any, done: Replay) -> Report:
    skipped = Skipped()
    skipped.note("not JSON in UTF-8", "log, line <7>", 2)
    reading = Reading(("log.jsonl",), {"mini-swe-agent": 3}, skipped, ("The template <b>minds</b>.",))
    flags = {arm.name: [("dlite", f"--drafter {arm.name}")] for arm in done.arms[1:]}
    judging = Judging(include_loops=True, argv=("dlite", "audit", "--note", "<b>&"), flags=flags)
    memory = footprints(target, done.arms, [300, 900], 8)
    return replay_report(target, reading, done, costs_of(done), memory, judging)
