from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dlite.bench.suites import Call, in_range, load
from dlite.data.jsonl import read_jsonl
from dlite.errors import ConfigError, DataError


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def render(_tokenizer: Any, messages: Any, _tools: Any) -> list[int]:
    return [1] * sum(len(m["content"]) for m in messages)


def test_one_question_a_line(tmp_path: Path) -> None:
    (call,) = load(write(tmp_path / "some.jsonl", {"question": "q", "tools": [{"name": "find"}]}), max_new_tokens=7)
    assert call == Call("some:1", "some", "some:1", ({"role": "user", "content": "q"},), ({"name": "find"},), (), 7)


def test_later_turns_follow_the_targets_own_answer(tmp_path: Path) -> None:
    calls = load(write(tmp_path / "mt.jsonl.gz", {"turns": ["a", "b", "c"]}), workload="bench")
    assert [(c.id, c.follows, c.messages[0]["content"]) for c in calls] == [
        ("bench:1", None, "a"),
        ("bench:1.2", "bench:1", "b"),
        ("bench:1.3", "bench:1.2", "c"),
    ]


def agent_row(turns: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": "s" * 5}, {"role": "user", "content": "t" * 5}]
    for _ in range(turns):
        messages += [{"role": "assistant", "content": "a" * 4}, {"role": "user", "content": "o" * 6}]
    return {"instance_id": "x__y-1", "messages": messages}


def test_agent_logs_are_replayed_before_each_assistant_message(tmp_path: Path) -> None:
    calls = load(write(tmp_path / "agent.jsonl", agent_row(3)))
    assert [len(c.messages) for c in calls] == [2, 4, 6]
    assert all(c.messages[-1]["role"] == "user" and c.follows is None for c in calls)


def test_in_range_selects_by_rendered_length_and_seed(tmp_path: Path) -> None:
    calls = load(write(tmp_path / "agent.jsonl", *[agent_row(20)] * 3))
    chosen = [in_range(calls, render, None, min_context=40, max_context=90, n=5, seed=s) for s in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(chosen[0]) == 5
    assert all(40 <= len(render(None, c.messages, None)) <= 90 for c in chosen[0] + chosen[2])
    everything = in_range(calls, render, None, min_context=40, max_context=90, n=999, seed=0)
    assert everything == [c for c in calls if 40 <= len(render(None, c.messages, None)) <= 90]


def test_in_range_does_not_render_what_must_be_too_long(tmp_path: Path) -> None:
    rendered = []

    def counting(tokenizer: Any, messages: Any, tools: Any) -> list[int]:
        rendered.append(len(messages))
        return render(tokenizer, messages, tools)

    calls = load(write(tmp_path / "agent.jsonl", agent_row(200)))
    in_range(calls, counting, None, max_context=30, n=9, seed=0)
    assert len(rendered) < 30


def test_in_range_without_a_match_says_so(tmp_path: Path) -> None:
    calls = load(write(tmp_path / "agent.jsonl", agent_row(2)))
    with pytest.raises(DataError, match="none of 2 calls has 900 to 1000"):
        in_range(calls, render, None, min_context=900, max_context=1000, n=1, seed=0)
    with pytest.raises(ConfigError, match="5 to 4"):
        in_range(calls, render, None, min_context=5, max_context=4, n=1, seed=0)


def test_in_range_draws_the_same_calls_for_the_same_seed(tmp_path: Path) -> None:
    """Conversations are drawn whole, since a turn needs those before it; only the last one may be cut short."""
    calls = load(write(tmp_path / "mt.jsonl", *[{"turns": ["a", "b"]}] * 10))

    def drawn(n: int, seed: int) -> list[Call]:
        return in_range(calls, render, None, max_context=1000, n=n, seed=seed)

    for n in (1, 2, 5, 8, 99):
        some = drawn(n, 4)
        assert len(some) == min(n, 20)
        assert some == [c for c in calls if c in some]
        names = {c.id for c in some}
        assert all(c.follows is None or c.follows in names for c in some)
    assert drawn(6, 1) == drawn(6, 1) != drawn(6, 2)


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    """str.splitlines would cut this line at U+2028 and break its JSON."""
    path = write(tmp_path / "u.jsonl", {"prompt": "a\u2028b\u0085c"}, "", {"prompt": "d"})
    assert [(n, row["prompt"]) for n, row in read_jsonl(path)] == [(1, "a\u2028b\u0085c"), (3, "d")]


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "caf\xe9"}\n')
    with pytest.raises(DataError, match="line 1: 'utf-8'"):
        load(path)


def test_unreadable_files_are_data_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent"):
        load(tmp_path / "absent.jsonl")
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text('{"prompt": "x"}\n')
    with pytest.raises(DataError, match="gzip"):
        load(plain)
    whole = gzip.compress(b"".join(b'{"prompt": "%d"}\n' % i for i in range(50)))
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(DataError, match=r"after line [1-9]"):
        load(tmp_path / "cut.jsonl.gz")
    with pytest.raises(DataError, match="has no records"):
        load(write(tmp_path / "empty.jsonl", ""))


def test_ready_ids_need_no_rendering(tmp_path: Path) -> None:
    calls = load(write(tmp_path / "ids.jsonl", {"prompt_ids": [1, 2, 3], "response_ids": [4]}))
    assert calls == [Call("ids:1", "ids", "ids:1", ids=(1, 2, 3))]
    assert in_range(calls, render, None, min_context=3, max_context=3, n=1, seed=0) == calls
