"""Answers in the target's own words: exactly its tokens, once each, whatever interrupts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlite.data.answers import Tally
from dlite.data.chat import next_turn_ids
from dlite.data.conversations import read_conversations
from dlite.data.dialogue import opening_ids
from dlite.data.jsonl import read_jsonl
from dlite.data.prompts import Prompt
from dlite.data.regenerate import RegenerateSettings, prefix_entries, regenerate
from dlite.drafters.none import NoDrafter
from dlite.engine.request import Request
from dlite.errors import DataError
from dlite.sampling import SamplingParams
from dlite.types import Conversation
from tests.data.support import chatty_target
from tests.support import plain, tiny_drafter

TARGET = chatty_target(seed=1)
PROMPTS = [Prompt(f"p{i}", "s", (), (words,)) for i, words in enumerate("a e i t s u r n as it su et".split())]
LONG = RegenerateSettings(max_new_tokens=90, batch=4)


def run(
    out: Path, prompts: list[Prompt] = PROMPTS, settings: RegenerateSettings = LONG
) -> tuple[Tally, dict[str, Conversation]]:
    tally = regenerate(TARGET, NoDrafter(), prompts, out, settings)
    talks = list(read_conversations(out, all_answers=True))
    assert len({t.id for t in talks}) == len(talks)
    return tally, {t.id: t for t in talks}


def test_greedy_answers_are_the_engines_own_and_the_mask_marks_exactly_them(tmp_path: Path) -> None:
    tally, talks = run(tmp_path / "a.jsonl")
    for prompt in PROMPTS:
        opening = tuple(opening_ids(TARGET.tokenizer, prompt))
        (answer,) = plain(TARGET, [Request(opening, 90)])
        talk = talks[prompt.id]
        assert talk.ids == opening + answer.token_ids
        assert talk.wrote == (False,) * len(opening) + (True,) * len(answer.token_ids)
        assert talk.finished == (answer.finish == "stop") == (talk.ids[-1] == 0)
    kinds = {(t.finished, t.looping) for t in talks.values()}
    assert kinds == {(True, False), (False, True)}  # a toy that is not stopped ends in a loop
    assert tally.written == len(PROMPTS)
    assert tally.tokens == sum(sum(t.wrote) for t in talks.values())
    assert tally.looping == tally.truncated == sum(not t.finished for t in talks.values())


def test_an_answer_cut_early_is_truncated_but_no_loop(tmp_path: Path) -> None:
    tally, talks = run(tmp_path / "a.jsonl", settings=replace(LONG, max_new_tokens=1))
    assert {(t.finished, t.looping, sum(t.wrote)) for t in talks.values()} <= {(False, False, 1), (True, False, 1)}
    assert tally.truncated >= 10


def test_a_drafter_changes_no_answer(tmp_path: Path) -> None:
    _, wanted = run(tmp_path / "a.jsonl")
    tally = regenerate(TARGET, tiny_drafter(TARGET), PROMPTS, tmp_path / "b.jsonl", LONG)
    assert {t.id: t for t in read_conversations(tmp_path / "b.jsonl", all_answers=True)} == wanted
    assert tally.written == len(PROMPTS)


def test_sampled_answers_repeat_with_their_seed(tmp_path: Path) -> None:
    hot = [replace(LONG, sampling=SamplingParams(temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    one, same, other = (run(tmp_path / f"{i}.jsonl", settings=s)[1] for i, s in enumerate(hot))
    assert one == same != other


@pytest.mark.parametrize("kept", range(0, 12, 4))
@pytest.mark.parametrize("torn", [b"", b'{"id": "p3", "so', b'{"id": "p3"'])
def test_a_killed_run_goes_on_by_id(tmp_path: Path, kept: int, torn: bytes) -> None:
    _, wanted = run(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    out = tmp_path / "killed.jsonl"
    out.write_bytes(b"".join(lines[:kept]) + torn)
    tally, talks = run(out)
    assert talks == wanted
    assert (tally.resumed, tally.written) == (kept, len(PROMPTS) - kept)
    assert out.read_bytes().splitlines(keepends=True)[:kept] == lines[:kept]


def test_a_finished_file_is_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    run(out)
    before = out.read_bytes()
    assert run(out)[0] == Tally(resumed=len(PROMPTS))
    assert out.read_bytes() == before


def test_two_prompts_of_one_id_are_answered_once(tmp_path: Path) -> None:
    tally, talks = run(tmp_path / "a.jsonl", [PROMPTS[0], PROMPTS[1], PROMPTS[0]])
    assert set(talks) == {"p0", "p1"}
    assert tally.written == 2


def test_turns_are_put_one_after_each_answer(tmp_path: Path) -> None:
    """Every answer is the greedy continuation of exactly the ids before it; the template closes each turn."""
    turns = ("sun", "rain", "tea")
    _, talks = run(
        tmp_path / "a.jsonl",
        [Prompt(f"p{i}", "s", (), (turn, *turns)) for i, turn in enumerate(["a", "e", "i", "t s", "u r"])],
    )
    longest = max(talks.values(), key=lambda t: len(spans(t)))
    assert len(spans(longest)) > 1
    for talk in talks.values():
        found = spans(talk)
        for number, (start, end) in enumerate(found):
            (answer,) = plain(TARGET, [Request(talk.ids[:start], 90)])
            assert talk.ids[start:end] == answer.token_ids
            if number + 1 < len(found):
                closing = tuple(next_turn_ids(TARGET.tokenizer, turns[number]))
                assert talk.ids[end - 1 : found[number + 1][0]] == closing  # the stop token stands once
        assert (len(found) == 4) == talk.finished


def test_a_batch_of_one_gives_the_same_file_content(tmp_path: Path) -> None:
    _, wanted = run(tmp_path / "a.jsonl")
    assert run(tmp_path / "b.jsonl", settings=replace(LONG, batch=1))[1] == wanted


def test_shared_beginnings_change_no_answer(tmp_path: Path) -> None:
    talk = [Prompt(f"p{i}", "s", (), (words, "tea")) for i, words in enumerate(["a", "a e", "a e i"])]
    counts = [prefix_entries(TARGET, NoDrafter(), talk, replace(LONG, prefix_bytes=size)) for size in (1 << 30, 0)]
    assert counts == [5, 0]
    _, wanted = run(tmp_path / "a.jsonl", talk, replace(LONG, prefix_bytes=0))
    assert run(tmp_path / "b.jsonl", talk)[1] == wanted


def test_what_is_kept_for_shared_beginnings_fits_its_budget() -> None:
    """With one entry for each request in flight, contexts of 8K tokens once needed tens of gigabytes."""
    info = TARGET.info
    layer = info.layer
    position = 2 * info.num_layers * layer.num_kv_heads * layer.head_dim * 4  # keys and values in fp32
    several = [Prompt("p", "s", (), ("a", "b"))]
    log = [Prompt("p", "s", tuple({"role": "user", "content": "a"} for _ in range(3)))]
    short = replace(LONG, max_context=100, max_new_tokens=20)
    for prompts, settings, longest in (
        (several, LONG, info.context_length),
        (several, short, info.context_length),
        (log, LONG, info.context_length),
        (log, short, 120),
    ):
        for entries in (1, 3):
            exact = replace(settings, prefix_bytes=entries * longest * position)
            assert prefix_entries(TARGET, NoDrafter(), prompts, exact) == entries
            less = replace(exact, prefix_bytes=exact.prefix_bytes - 1)
            assert prefix_entries(TARGET, NoDrafter(), prompts, less) == entries - 1
    hoarder = NoDrafter()
    hoarder.state_bytes = lambda context: context * position  # type: ignore[method-assign]
    exact = replace(LONG, prefix_bytes=3 * info.context_length * position)
    assert prefix_entries(TARGET, hoarder, several, exact) == 1
    assert prefix_entries(TARGET, NoDrafter(), PROMPTS, LONG) == 0


def test_every_record_says_how_it_was_made(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    log = Prompt("log-3", "s", ({"role": "user", "content": "sun"},), trace="log")
    hot = replace(LONG, max_new_tokens=9, sampling=SamplingParams(temperature=0.5, seed=7))
    run(out, [*PROMPTS[:3], log], hot)
    made = {"target": "toy", "tokenizer_hash": TARGET.info.tokenizer_hash, "max_new_tokens": 9}
    made |= {"temperature": 0.5, "seed": 7}
    records = {record["id"]: record for _, record in read_jsonl(out)}
    assert all(record.items() >= made.items() for record in records.values())
    assert {name: record["group"] for name, record in records.items()} == {
        "p0": "p0", "p1": "p1", "p2": "p2", "log-3": "log",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "other", "says"),
    [
        ("target", "another", "made with target 'another'. Expected 'toy'"),
        ("tokenizer_hash", "abc", "made with tokenizer_hash 'abc'"),
        ("max_new_tokens", 91, "made with max_new_tokens 91. Expected 90"),
        ("temperature", 0.7, "made with temperature 0.7. Expected 0.0"),
        ("seed", 4, "made with seed 4. Expected 0"),
    ],
)
def test_a_file_is_gone_on_with_as_it_was_begun(tmp_path: Path, key: str, other: object, says: str) -> None:
    """Answers of two kinds in one file could not be told apart afterwards."""
    out = tmp_path / "a.jsonl"
    run(out, PROMPTS[:2])
    (_, first), (_, second) = read_jsonl(out)
    older = {k: v for k, v in first.items() if k in ("id", "source", "ids", "wrote", "finished", "looping")}
    out.write_text("".join(json.dumps(r) + "\n" for r in (older, second | {key: other})))
    before = out.read_bytes()
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2: .*{says}.* give another --out"):
        run(out)
    assert out.read_bytes() == before
    out.write_text(json.dumps(older) + "\n")
    assert run(out, PROMPTS[:2])[0].resumed == 1


def test_ready_token_ids_are_continued_as_they_are(tmp_path: Path) -> None:
    _, talks = run(tmp_path / "a.jsonl", [Prompt("p", "s", ids=(5, 6, 7))])
    (answer,) = plain(TARGET, [Request((5, 6, 7), 90)])
    assert talks["p"].ids == (5, 6, 7, *answer.token_ids)


def test_long_prompts_are_counted_and_passed_over(tmp_path: Path) -> None:
    lengths = {p.id: len(opening_ids(TARGET.tokenizer, p)) for p in PROMPTS}
    limit = sorted(lengths.values())[7]
    tally, talks = run(tmp_path / "a.jsonl", settings=replace(LONG, max_context=limit))
    assert set(talks) == {name for name, length in lengths.items() if length <= limit}
    assert tally.too_long == len(PROMPTS) - len(talks) == 4


def test_history_and_tools_reach_the_target(tmp_path: Path) -> None:
    history = (
        {"role": "user", "content": "sun"},
        {"role": "assistant", "content": "rain"},
        {"role": "user", "content": "tea"},
    )
    prompt = Prompt("p", "s", history, (), ({"name": "nest"},))
    run(tmp_path / "a.jsonl", [prompt])
    ((_, record),) = read_jsonl(tmp_path / "a.jsonl")
    text = TARGET.tokenizer.decode(record["ids"][: record["wrote"][0][0]])
    assert [word in text for word in ("sun", "rain", "tea", "nest")] == [True] * 4


def spans(talk: Conversation) -> list[tuple[int, int]]:
    edges = [t for t in range(len(talk.ids) + 1) if (*talk.wrote, False)[t] != (False, *talk.wrote)[t]]
    return list(zip(edges[::2], edges[1::2], strict=True))
