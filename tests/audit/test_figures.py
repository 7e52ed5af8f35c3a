from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlite.audit.figures import ALL, COPIED, context_bucket, figures, source_figures, span_figures, turn_bucket
from dlite.audit.marks import TARGET, Mark, marks
from dlite.audit.replay import Replay
from dlite.bench.run import PLAIN
from dlite.types import tau


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (0, "below 1K"),
        (1023, "below 1K"),
        (1024, "1-2K"),
        (4096, "4-8K"),
        (131071, "64-128K"),
        (131072, "128K and more"),
    ],
)
def test_context_buckets_double(tokens: int, name: str) -> None:
    assert context_bucket(tokens) == name


@pytest.mark.parametrize(("number", "name"), [(1, "1"), (2, "2-3"), (7, "4-7"), (63, "32-63"), (64, "64 and later")])
def test_turn_buckets_double(number: int, name: str) -> None:
    assert turn_bucket(number) == name


def test_every_call_is_in_one_group_of_each_kind(done: Replay) -> None:
    rows = figures(done, include_loops=True, seed=0)
    for by in ("all", "context", "turn", "tool"):
        for arm in done.arms:
            mine = [row for row in rows if (row.by, row.arm) == (by, arm.name)]
            assert sum(row.calls for row in mine) == len(done.turns)
            assert sum(row.rounds for row in mine) == next(r.rounds for r in rows if (r.by, r.arm) == ("all", arm.name))
    contexts = list(dict.fromkeys(row.group for row in rows if row.by == "context"))
    assert contexts == ["below 1K", "1-2K"]
    assert {row.group for row in rows if row.by == "tool"} == {"bash: ls", "bash: grep"}


def test_the_numbers_are_sums_over_the_main_runs(done: Replay) -> None:
    rows = figures(done, include_loops=True, seed=0)
    whole = {row.arm: row for row in rows if row.by == ALL}
    for name, row in whole.items():
        mine = [t.generation for t in done.trials if (t.arm, t.reuse) == (name, "on")]
        plain = [t.generation for t in done.trials if (t.arm, t.reuse) == (PLAIN, "on")]
        rounds = [r for one in mine for r in one.rounds]
        assert row.tau is not None
        assert row.tau.value == tau(rounds)
        assert row.seconds.total == pytest.approx(sum(one.seconds.total for one in mine))
        tokens, tokens_plain = (sum(r.committed for one in some for r in one.rounds) for some in (mine, plain))
        pace = (sum(g.seconds.decode for g in plain) / tokens_plain) / (sum(g.seconds.decode for g in mine) / tokens)
        assert row.speedup is not None
        assert row.speedup.value == pytest.approx(pace)
    assert whole["good"].tau.value > whole["poor K=2"].tau.value > 1
    assert whole[PLAIN].round_cost == 1


def test_loops_are_left_out_unless_wanted(done: Replay) -> None:
    first = done.turns[0].id
    looping = replace(done, looping=frozenset({first}))
    calls = [figures(looping, include_loops=kept, seed=0)[0].calls for kept in (False, True)]
    assert calls == [len(done.turns) - 1, len(done.turns)]
    everything = replace(done, looping=frozenset(turn.id for turn in done.turns))
    assert figures(everything, include_loops=False, seed=0) == []


def test_an_arm_without_a_passed_check_has_no_speedup(done: Replay) -> None:
    unchecked = replace(done, checks=tuple(c for c in done.checks if c.arm != "good"))
    row = next(r for r in figures(unchecked, include_loops=True, seed=0) if r.arm == "good")
    assert row.speedup is None
    assert row.call_ratio is None
    assert row.tau is not None


def test_spans_share_out_the_tokens(done: Replay, target: object) -> None:
    made = {
        (t.turn, t.arm): [
            Mark("x", 0, TARGET, "prose", False),
            Mark("y", 2, "guesser", "code", True),
            Mark("z", 1, "guesser", "code", False),
        ]
        for t in done.trials
    }
    rows = {row.span: row for row in span_figures(done, made, include_loops=True, seed=0) if row.arm == "good"}
    assert list(rows) == ["prose", "code", COPIED]
    assert (rows["code"].tokens, rows["code"].share) == (18, pytest.approx(2 / 3))
    assert (rows["prose"].accepted.value, rows["code"].accepted.value, rows[COPIED].accepted.value) == (0, 1, 1)


def every_mark(done: Replay, target: Any) -> dict[tuple[str, str], list[Mark]]:
    ids, names = {turn.id: turn.ids for turn in done.turns}, {arm.name: arm.drafter.name for arm in done.arms}
    return {
        (t.turn, t.arm): marks(t.generation, ids[t.turn], target.tokenizer, names[t.arm])
        for t in done.trials
        if t.reuse == "on"
    }


def test_every_token_was_given_by_somebody(done: Replay, target: Any) -> None:
    """A hybrid of two: the parts share the tokens, and each has the tau of its own rounds."""
    halves = tuple(
        replace(
            t,
            generation=replace(
                t.generation,
                rounds=tuple(replace(r, source=("a", "b")[i % 2]) for i, r in enumerate(t.generation.rounds)),
            ),
        )
        if t.arm == "good"
        else t
        for t in done.trials
    )
    hybrid = replace(done, trials=halves)
    rows = source_figures(hybrid, every_mark(hybrid, target), include_loops=True)
    assert [(row.arm, row.source) for row in rows] == [
        ("good", "a"),
        ("good", "b"),
        ("good", TARGET),
        ("poor K=2", "guesser"),
        ("poor K=2", TARGET),
    ]
    mine = [t.generation for t in halves if (t.arm, t.reuse) == ("good", "on")]
    good = rows[:3]
    assert sum(row.tokens for row in good) == sum(len(one.token_ids) for one in mine)
    assert sum(row.share for row in good) == pytest.approx(1)
    drafted = [r for one in mine for r in one.rounds if r.proposed and r.source == "a"]
    assert (good[0].rounds, good[0].tau) == (len(drafted), tau(drafted))
    assert good[0].tokens == sum(min(r.accepted, r.committed) for r in drafted)
    looping = replace(done, looping=frozenset(turn.id for turn in done.turns))
    assert source_figures(looping, every_mark(done, target), include_loops=False) == []


def test_accepted_shares_follow_the_rounds(done: Replay, target: Any) -> None:
    made = every_mark(done, target)
    rows = [
        row for row in span_figures(done, made, include_loops=True, seed=0) if row.arm == "good" and row.span != COPIED
    ]
    accepted = sum(row.accepted.value * row.tokens for row in rows)
    kept = sum(r.accepted for t in done.trials if (t.arm, t.reuse) == ("good", "on") for r in t.generation.rounds)
    assert accepted == pytest.approx(kept, abs=len(done.turns))  # an end inside a round cuts its drafts
    assert sum(row.share for row in rows) == pytest.approx(1)
