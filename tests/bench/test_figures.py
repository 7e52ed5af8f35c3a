from __future__ import annotations

import random
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from dlite.bench.figures import ALL, BUCKETS, Estimate, Figures, bootstrap, bucket, figures
from dlite.bench.run import PLAIN, Arm, BenchResult, BenchSettings, Trial, run
from dlite.engine.stats import acceptance_by_position, is_looping, tau
from dlite.target.toy import ToyTarget
from dlite.types import Generation, Round, Seconds

from .support import Guesser, make_calls


def ratio(sums: np.ndarray) -> np.ndarray:
    return np.asarray(sums[..., 0] / sums[..., 1])


def find(rows: list[Figures], arm: str, workload: str = ALL, context: str = ALL) -> Figures:
    (row,) = [r for r in rows if (r.arm, r.workload, r.context) == (arm, workload, context)]
    return row


def made(prompt: int, *rounds: Round, prefill: float = 1.0) -> Generation:
    spent = Seconds(
        prefill, *(sum(getattr(r, f"seconds_{part}") for r in rounds) for part in ("draft", "verify", "other"))
    )
    return Generation("", (1,) * (1 + sum(r.committed for r in rounds)), "length", rounds, spent, prompt)


def by_hand(result: BenchResult) -> BenchResult:
    """Two calls: plain takes 4 and 2 steps of 2 s; the arm 2 rounds of 2 and 4 s, then 1 of 3 s."""
    step = Round(0, 0, 1, 9, 0.0, 1.5, 0.5)
    rounds = [Round(2, 1, 2, 9, 0.5, 1.0, 0.5), Round(2, 2, 2, 9, 1.0, 2.0, 1.0), Round(1, 1, 2, 9, 1.0, 1.5, 0.5)]
    arm = Arm("arm", result.arms[1].drafter)
    trials = (
        Trial("a", "w", PLAIN, made(10, *[step] * 4), False),
        Trial("a", "w", "arm", made(10, *rounds[:2]), False),
        Trial("b", "w", "arm", made(1024, rounds[2]), False),
        Trial("b", "w", PLAIN, made(1024, *[step] * 2), False),
    )
    checks = tuple(replace(check, arm="arm") for check in result.checks[:1])
    return replace(result, arms=(result.arms[0], arm), trials=trials, checks=checks)


def test_figures_by_hand(result: BenchResult) -> None:
    row = find(figures(by_hand(result)), "arm", "w")
    assert (row.calls, row.tokens, row.rounds) == (2, 6, 3)
    assert row.tau is not None
    assert row.tau.value == 2.0
    assert row.acceptance == (1.0, 0.5)
    assert row.round_cost == 3.0 / 2.0
    assert row.speedup is not None
    assert row.speedup.value == pytest.approx((12 / 6) / (9 / 6))
    assert row.tokens_per_second == pytest.approx(6 / 9)
    assert row.call_seconds == median([7.0, 4.0])
    assert row.call_ratio == pytest.approx(median([9.0, 5.0]) / 5.5)
    assert (row.draft_ms, row.verify_ms) == (1000.0, 1500.0)
    assert row.other_share == pytest.approx(2 / 9)
    assert row.seconds == Seconds(2.0, 2.5, 4.5, 2.0)
    spans = {r.context: r.calls for r in figures(by_hand(result)) if r.arm == "arm"}
    assert spans == {ALL: 2, "0-1K": 1, "1-2K": 1}


def test_plain_is_the_unit(result: BenchResult) -> None:
    row = find(figures(result), PLAIN)
    assert row.tau == Estimate(1.0, 1.0, 1.0)
    assert row.round_cost == row.call_ratio == 1.0
    assert row.speedup == Estimate(1.0, 1.0, 1.0)
    assert row.acceptance == ()


def test_tau_and_acceptance_are_the_engines(result: BenchResult) -> None:
    for arm in ("dlite K=2", "guesser"):
        rounds = [r for t in result.trials if t.arm == arm for r in t.generation.rounds]
        row = find(figures(result), arm)
        assert row.tau is not None
        assert row.tau.value == tau(rounds)
        assert row.acceptance == tuple(acceptance_by_position(rounds))
        assert row.tau.low is not None
        assert row.tau.high is not None
        assert row.tau.low <= row.tau.value <= row.tau.high


def test_rows_cover_workloads_spans_and_arms(result: BenchResult) -> None:
    rows = figures(result)
    groups = {(r.workload, r.context): r.calls for r in rows if r.arm == PLAIN}
    assert groups == {
        ("short", ALL): 4, ("short", "0-1K"): 4, ("long", ALL): 2, ("long", "1-2K"): 2,
        (ALL, ALL): 6, (ALL, "0-1K"): 4, (ALL, "1-2K"): 2,
    }  # fmt: skip
    assert len(rows) == 3 * len(groups)


def test_one_workload_has_no_row_for_all(failed_result: BenchResult) -> None:
    assert {r.workload for r in figures(failed_result)} == {"short"}


def test_a_failed_check_leaves_no_speedup(failed_result: BenchResult) -> None:
    for row in figures(failed_result):
        shown = (row.speedup, row.call_ratio, row.tokens_per_second)
        assert all(value is None for value in shown) == (row.arm != PLAIN)
        assert row.tau is not None


def test_no_check_leaves_no_speedup(result: BenchResult) -> None:
    unchecked = replace(result, checks=())
    assert find(figures(unchecked), "guesser").speedup is None
    assert find(figures(result), "guesser").speedup is not None


def test_loops_are_left_out_unless_wanted() -> None:
    target = ToyTarget(stop=False)  # greedy, and with 144 states: any long text ends in a cycle
    calls = [*make_calls("short", 4, max_new_tokens=110), *make_calls("brief", 3, max_new_tokens=10)]
    result = run(target, [Arm("guesser", Guesser(target, right=0.0))], calls)
    plain = [t for t in result.trials if t.arm == PLAIN]
    loops = [t for t in plain if is_looping(t.generation.token_ids)]
    assert loops
    row = find(figures(result), "guesser")
    assert (row.calls, row.loops) == (len(plain) - len(loops), len(loops))
    included = find(figures(replace(result, settings=BenchSettings(include_loops=True))), "guesser")
    assert (included.calls, included.loops) == (len(plain), len(loops))
    assert included.tokens > row.tokens


def test_nothing_but_loops_gives_no_figures(result: BenchResult) -> None:
    looping = replace(result, trials=tuple(replace(t, looping=True) for t in result.trials))
    row = find(figures(looping), "guesser")
    assert (row.calls, row.loops, row.tokens) == (0, 6, 0)
    assert [row.tau, row.speedup, row.round_cost, row.call_seconds, row.other_share] == [None] * 5


def test_bootstrap_is_fixed_by_its_seed() -> None:
    dice = random.Random(0)
    columns = np.array([[dice.randrange(20, 60), dice.randrange(15, 25)] for _ in range(30)], dtype=np.float64)
    first, again, other = (bootstrap(columns, ratio, seed=s) for s in (1, 1, 2))
    assert first == again != other
    assert first is not None
    assert first.value == pytest.approx(columns[:, 0].sum() / columns[:, 1].sum())


def test_bootstrap_agrees_with_drawing_calls_one_by_one() -> None:
    dice = random.Random(0)
    columns = np.array([[dice.randrange(20, 60), dice.randrange(15, 25)] for _ in range(30)], dtype=np.float64)
    generator = np.random.default_rng(0)
    slow = [ratio(columns[generator.integers(0, 30, 30)].sum(0)) for _ in range(4000)]
    fast = bootstrap(columns, ratio, seed=0, resamples=4000)
    assert fast is not None
    assert [fast.low, fast.high] == pytest.approx(np.percentile(slow, [2.5, 97.5]), rel=0.02)


def test_bootstrap_of_next_to_nothing() -> None:
    assert bootstrap(np.array([[3.0, 2.0]]), ratio, seed=0) == Estimate(1.5, None, None)
    assert bootstrap(np.zeros((0, 2)), ratio, seed=0) is None
    assert bootstrap(np.zeros((4, 2)), ratio, seed=0) is None


def test_buckets() -> None:
    assert [bucket(n) for n in (1, 1023, 1024, 2048, 4096, 8191, 8192, 100_000)] == [
        "0-1K", "0-1K", "1-2K", "2-4K", "4-8K", "4-8K", "8K+", "8K+",
    ]  # fmt: skip
    assert len(BUCKETS) == 5
