"""The drafter before and after on the same held-out calls, in turn; which of the two is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlite.audit.command import tie_gap
from dlite.audit.replay import Replay, ReplaySettings, replay
from dlite.audit.turns import Turn
from dlite.bench.figures import Estimate, bootstrap
from dlite.bench.run import PLAIN, Arm
from dlite.drafters import load_drafter
from dlite.drafters.none import NoDrafter
from dlite.progress import counting_bar
from dlite.target.base import Target

BEFORE, AFTER = "before", "after"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """``kept`` is "before" or "after"; ``gain`` the difference of their tau, after minus before, over the same calls."""

    kept: str
    gain: Estimate | None
    sentence: str


def compare(target: Target, before: Path, after: Path, turns: Sequence[Turn], max_new_tokens: int) -> Replay:
    """Every turn plainly, with the old and with the new drafter. Ctrl-C goes on upwards: half a comparison is none."""
    arms = [
        Arm(PLAIN, NoDrafter()),
        Arm(BEFORE, load_drafter(str(before), target)),
        Arm(AFTER, load_drafter(str(after), target)),
    ]
    with counting_bar("held-out calls", len(turns)) as advance:
        settings = ReplaySettings(max_new_tokens, "on", tie_gap=tie_gap(target))
        done = replay(target, arms, turns, settings, advance)
    if done.interrupted:
        raise KeyboardInterrupt
    return done


def verdict(done: Replay, *, include_loops: bool, seed: int) -> Verdict:
    """Keep the new drafter where it commits more tokens a round and leaves the target's text alone."""
    kept = [turn.id for turn in done.turns if include_loops or turn.id not in done.looping]
    found = {(t.turn, t.arm): t.generation.rounds for t in done.trials}
    rows = [
        [sum(r.committed for r in found[turn, AFTER]), len(found[turn, AFTER]),
         sum(r.committed for r in found[turn, BEFORE]), len(found[turn, BEFORE])]
        for turn in kept
    ]  # fmt: skip
    gain = bootstrap(np.array(rows, dtype=np.float64), _difference, seed=seed) if rows else None
    if gain is None:
        return Verdict(BEFORE, None, "No held-out call could be judged, so the drafter is left as it was.")
    if done.lossless(AFTER) is False and done.lossless(BEFORE) is not False:
        return Verdict(BEFORE, gain, "The new drafter changed the target's text, so the drafter is left as it was.")
    if gain.value <= 0:
        return Verdict(BEFORE, gain, "It did not draft better on held-out calls, so the drafter is left as it was.")
    sure = gain.low is not None and gain.low > 0
    doubt = "" if sure else " The interval includes no gain at all: more calls would tell."
    return Verdict(
        AFTER, gain, f"The new drafter commits {gain.value:.2f} tokens a round more on held-out calls.{doubt}"
    )


def _difference(sums: Array) -> Array:
    return np.asarray(sums[..., 0] / sums[..., 1] - sums[..., 2] / sums[..., 3])
