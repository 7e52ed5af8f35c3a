from __future__ import annotations

from dataclasses import replace

import pytest

from dlite.audit.marks import TARGET, marks, positions, runs, sources, token_texts, unrolled
from dlite.audit.replay import Replay
from dlite.audit.spans import PROSE, REASONING
from tests.data.support import PLAIN, make_tokenizer

from .support import generation


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([], [0]),
        ([(4, 2, 3)], [0, 1, 2, 0]),
        ([(4, 0, 1), (4, 4, 5)], [0, 0, 1, 2, 3, 4, 0]),
        ([(4, 3, 2)], [0, 1, 2]),  # the end of the text lay inside the accepted drafts
        ([(0, 0, 1)], [0, 0]),
    ],
)
def test_positions_follow_from_the_rounds(rounds: list[tuple[int, int, int]], expected: list[int]) -> None:
    assert positions(generation(range(len(expected)), rounds)) == expected


def test_every_token_knows_which_part_of_a_hybrid_gave_it() -> None:
    """Its rounds name the part; a simple drafter's do not. What no draft gave is the target's."""
    made = generation(range(8), [(4, 2, 3), (4, 1, 2), (0, 0, 1), (4, 3, 1)])
    named = [replace(r, source=s) for r, s in zip(made.rounds, ("suffix", "dlite", "", "suffix"), strict=True)]
    hybrid = sources(replace(made, rounds=tuple(named)), "hybrid")
    assert hybrid == [TARGET, "suffix", "suffix", TARGET, "dlite", TARGET, TARGET, "suffix"]
    assert sources(made, "ngram") == [TARGET, "ngram", "ngram", TARGET, "ngram", TARGET, TARGET, "ngram"]
    assert sources(generation([], []), "x") == []


def test_positions_agree_with_what_was_decoded(done: Replay) -> None:
    for trial in done.trials:
        found = positions(trial.generation)
        assert len(found) == len(trial.generation.token_ids)
        kept = sum(min(r.accepted, r.committed) for r in trial.generation.rounds)
        assert sum(p > 0 for p in found) == kept


def test_texts_show_special_tokens_and_add_up() -> None:
    tokenizer = make_tokenizer(PLAIN)
    ids = tokenizer.encode("<|start|>a é<|end|>", add_special_tokens=False)
    pieces = token_texts(tokenizer, ids)
    assert pieces == ["<|start|>", "a", " ", "é", "<|end|>"]
    assert token_texts(tokenizer, []) == []


def test_a_mark_has_it_all() -> None:
    tokenizer = make_tokenizer(PLAIN)
    prompt = tokenizer.encode("abcdefgh<think>", add_special_tokens=False)
    ids = tokenizer.encode("ab</think>abcdefgh", add_special_tokens=False)
    rounds = [(len(ids), len(ids) - 2, len(ids) - 1)]
    found = marks(generation(ids, rounds), prompt, tokenizer, "dlite")
    assert [m.text for m in found[:2]] == ["a", "b"]
    assert [m.span for m in found] == [REASONING] * 10 + [PROSE] * 8
    assert [m.copied for m in found] == [False] * 10 + [True] * 8
    assert [m.position for m in found] == [0, *range(1, len(ids) - 1), 0]
    assert [m.source for m in found] == [TARGET, *["dlite"] * (len(ids) - 2), TARGET]


def test_runs_and_back() -> None:
    values = ["a", "a", "b", "a"]
    assert runs(values) == [["a", 2], ["b", 1], ["a", 1]]
    assert list(unrolled(runs(values))) == values
    assert runs([]) == []
