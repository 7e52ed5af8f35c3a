"""Public workloads by name: rows of a hub that is not there, files under the rules of a name, and whose word counts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlite.bench import command
from dlite.bench.named import GROUPS, TABLE, WORKLOADS, Hub
from dlite.bench.report import read_json
from dlite.bench.suites import Call
from dlite.bench.workloads import Asked, choose, limits, parse
from dlite.commands.workloads import workloads
from dlite.data.chat import render
from dlite.data.rows import read_row
from dlite.drafters.none import NoDrafter
from dlite.errors import ConfigError, DataError, DliteError
from dlite.sampling import SamplingParams
from tests.audit.support import talker
from tests.data.support import TOOLS, chatty_target

ANY = Asked(min_context=0)


class FakeHub:
    """Stands in for the ``datasets`` package: data sets by path, files by what their name ends in."""

    def __init__(self, **sets: list[dict[str, Any]]) -> None:
        self.sets = sets
        self.asked: list[tuple[Any, ...]] = []

    def load_dataset(self, path: str, config: str | None = None, **more: Any) -> Iterator[dict[str, Any]]:
        """Rows, or the text of files as the text builder gives it."""
        self.asked.append((path, config, more.get("split"), more.get("sample_by")))
        assert more["streaming"]
        if path != "text":
            return iter(self.sets[path.rpartition("/")[2]])
        rows = self.sets[more["data_files"][0].rpartition("/")[2]]
        texts = [json.dumps(rows)] if more["sample_by"] == "document" else map(json.dumps, rows)
        return iter([{"text": text} for text in texts])


def hub(monkeypatch: pytest.MonkeyPatch, **sets: list[dict[str, Any]]) -> FakeHub:
    made = FakeHub(**sets)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=made.load_dataset))
    return made


def chosen(given: str, asked: Asked = ANY, *, target: Any = None, seed: int = 0) -> list[Call]:
    target = target or talker()
    return [
        call
        for item in parse(given)
        for call in choose(item, target, limits(item, asked, target.info.context_length), seed)
    ]


def lines(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def talk(steps: int, length: int = 50) -> list[dict[str, Any]]:
    pair = [{"role": "assistant", "content": "so"}, {"role": "user", "content": "x" * length}]
    return [{"role": "user", "content": "fix"}, *(pair * steps)]


ROWS: dict[
    str, tuple[str, dict[str, Any], str]
] = {  # name -> (what the hub is asked for, a row as it is published, words)
    "gsm8k": ("gsm8k", {"question": "{1} + 1?", "answer": "2"}, "{1} + 1?\nPlease reason step by step"),
    "math500": ("MATH-500", {"problem": "x?"}, "final answer within \\boxed{}."),
    "humaneval": ("openai_humaneval", {"prompt": "def f(): {}"}, "```python\ndef f(): {}\n```"),
    "mbpp": ("mbpp", {"prompt": "Write f."}, "Write f."),
    "livecodebench": ("test.jsonl", {"question_content": "Sort.", "starter_code": ""}, "# YOUR CODE HERE"),
    "alpaca": ("question.jsonl", {"question_id": 1, "turns": ["Why?"]}, "Why?"),
}


@pytest.mark.parametrize("name", ROWS)
def test_prompts_of_a_hub(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, row, words = ROWS[name]
    hub(monkeypatch, **{place: [row] * 3})
    calls = chosen(name, Asked(calls=2, max_new_tokens=9))
    assert [(c.workload, c.max_new_tokens) for c in calls] == [(name, 9)] * 2
    assert words in str(calls[0].messages[0]["content"])


def test_code_with_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    row = TABLE["livecodebench"].shape({"question_content": "Q", "starter_code": "class S:"}, "")
    assert "Use the following code structure:\n```python\nclass S:\n```" in read_row(row or {}, "").turns[0]


def test_what_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hub(monkeypatch, gsm8k=[{"question": "q"}], **{"locomo10.json": [LOCOMO]})
    chosen("gsm8k")
    chosen("agentmembench")
    assert made.asked == [("openai/gsm8k", "main", "test", None), ("text", None, "train", "document")]


def test_two_turns_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, mt_bench_prompts=[{"prompt": ["a", "b"]}])
    first, second = chosen("mt-bench")
    assert (first.follows, second.follows) == (None, first.id)


LOCOMO = {
    "sample_id": "c1",
    "conversation": {"session_1": [{"speaker": "A", "text": "hello " * 100}]},
    "qa": [{"question": "who?", "answer": 3}, {"question": "when?", "answer": "May"}],
}
BOOK = {"_id": "b", "question": "which?", "context": "word " * 2000, **{f"choice_{c}": c for c in "ABCD"}}


def test_long_texts_lose_their_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """LongBench v2 by subtask; the prompt fits the target's context with room for the answer."""
    rows = [{**BOOK, "_id": d, "domain": d} for d in ("Multi-Document QA", "Code Repository Understanding", "Other")]
    hub(monkeypatch, **{"LongBench-v2": rows})
    target = talker()
    calls = chosen("longbench-v2-code-repo", target=target)
    assert len(calls) == 1
    tokens = len(render(target.tokenizer, calls[0].messages, calls[0].tools))
    assert 0.9 * target.info.context_length < tokens <= target.info.context_length - 128
    assert "which?" in calls[0].messages[0]["content"]
    with pytest.raises(DataError, match="there are no rows of it"):
        chosen("longbench-v2-dialogue")


def test_subtasks_of_an_unpacked_archive(tmp_path: Path) -> None:
    """The folder says the subtask where the row does not."""
    for folder in ("code_repository_understanding", "multi-document_qa"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "q1.md").write_text(
            "# Question\nwhich?\n# Choices\n" + "".join(f"- {c}: {c}\n" for c in "ABCD")
        )
        (tmp_path / folder / "q1_context.txt").write_text(f"{folder} " * 30)
    calls = chosen(f"longbench-v2-multi-doc-qa={tmp_path}")
    assert len(calls) == 1
    assert "multi-document_qa" in calls[0].messages[0]["content"]


def test_agent_runs_of_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [{"role": "system", "system_prompt": "be", "text": None}, {"role": "user", "text": "fix"}]
    steps += [{"role": "ai", "text": "ls"}, {"role": "user", "text": "a.py"}, {"role": "ai", "text": "cat"}]
    hub(monkeypatch, **{"SWE-agent-trajectories": [{"instance_id": "x__y-1", "trajectory": steps}]})
    first, second = sorted(chosen("swe-bench"), key=lambda call: len(call.messages))
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert [m["content"] for m in second.messages] == ["be", "fix", "ls", "a.py"]


def test_only_the_question_behind_a_rollout_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, **{"*.jsonl": [{"id": 1, "messages": talk(3), "question": "how often?"}]})
    (call,) = chosen("agentlongbench")
    assert call.messages[-1]["content"] == "how often?"
    assert len(call.messages) == 8


def test_whole_sessions_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each session drawn, all the calls of the right length; --calls counts calls instead."""
    path = lines(tmp_path / "s.jsonl", [{"id": f"s{i}", "messages": talk(6)} for i in range(8)])
    monkeypatch.setitem(TABLE, "bfcl-v3", TABLE["bfcl-v3"].__class__(**{**vars(TABLE["bfcl-v3"]), "count": 3}))
    calls = chosen(f"bfcl-v3={path}", Asked(min_context=200))
    sessions = {call.group for call in calls}
    assert len(sessions) == 3
    per = [sum(call.group == one for call in calls) for one in sessions]
    assert per[0] == per[1] == per[2] > 1
    tokenizer = talker().tokenizer
    assert all(len(render(tokenizer, c.messages, c.tools)) >= 200 for c in calls)
    assert len(chosen(f"bfcl-v3={path}", Asked(calls=2, min_context=200))) == 2
    with pytest.raises(DataError, match="no session has a call"):
        chosen(f"bfcl-v3={path}", Asked(min_context=2000))


def test_a_file_takes_over_the_rules_of_its_name(tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", [{"question": str(i)} for i in range(60)])
    context = 10_000
    named, other, plain = (limits(parse(p)[0], Asked(), context) for p in (f"gsm8k={path}", f"mine={path}", path))
    assert (named.count, named.max_new_tokens, named.max_context) == (1319, 2048, context - 2048)
    assert (other.count, other.max_new_tokens) == (plain.count, plain.max_new_tokens) == (20, 128)
    said = limits(parse(f"swe-bench={path}")[0], Asked(3, 7, 5, 100), context)
    assert (said.count, said.max_new_tokens, said.min_context, said.max_context) == (3, 7, 5, 100)
    assert len(chosen(f"gsm8k={path}", Asked(max_new_tokens=5))) == 60
    assert len(chosen(f"mine={path}")) == 20


def test_a_target_too_small_for_a_rule_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="behind more than 32768 tokens; here prompts end at 7488.*--min-context 0"):
        limits(parse("swe-bench")[0], Asked(), 8000)


def test_a_name_may_stand_for_several(tmp_path: Path) -> None:
    assert [item.name for item in parse("longbench-v2")] == list(GROUPS["longbench-v2"])
    assert {item.path for item in parse("longbench-v2=x.tar.gz")} == {"x.tar.gz"}
    assert len(GROUPS["longbench-v2"]) == 4


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DliteError, match=r"extra \[hub\]"):
        chosen("gsm8k")


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch)
    with pytest.raises(DataError, match="gsm8k cannot be read from openai/gsm8k .*--workload gsm8k=FILE"):
        chosen("gsm8k")
    hub(monkeypatch, gsm8k=[{"other": 1}])
    with pytest.raises(DataError, match="row 1: 'question' is missing"):
        chosen("gsm8k")


def test_nothing_to_replay_says_why(tmp_path: Path) -> None:
    path = lines(tmp_path / "x.jsonl", [{"a": 1}])
    with pytest.raises(DataError, match="swe-bench has nothing to replay: 1 a layout that is not known"):
        chosen(f"swe-bench={path}")


def test_the_table_is_whole() -> None:
    wanted = "gsm8k math500 humaneval mbpp livecodebench mt-bench alpaca swe-bench agentmembench agentlongbench bfcl-v3"
    assert set(wanted.split()) | set(GROUPS["longbench-v2"]) == set(TABLE)
    assert len(TABLE) == len(WORKLOADS)
    for one in WORKLOADS:
        assert isinstance(one.source, Hub) or one.source.startswith("bfcl:")
        assert one.rule.endswith(".")
        assert one.count is None or f"{one.count:,}" in one.rule or one.name == "mt-bench"
        assert not one.min_context or "32K" in one.rule


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    workloads()
    said = capsys.readouterr().out
    assert all(f"{name}: " in said for name in TABLE)


def test_a_bench_by_name_says_its_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, gsm8k=[{"question": "a"}, {"question": "e"}])
    monkeypatch.setattr(command, "load_drafter", lambda *_: NoDrafter())
    target = chatty_target(TOOLS, "usera itn\n", seed=1, context_length=400)
    command.bench_files(
        target, ["gsm8k"], ["nothing"], [], tmp_path, calls=None, max_new_tokens=8, min_context=None, max_context=None,
        sampling=SamplingParams(), include_loops=True, seed=0, argv=["dlite", "bench"],
    )  # fmt: skip
    report = read_json(tmp_path / "report.json")
    assert report["conditions"]["gsm8k"] == "up to 1319 calls, 8 new tokens, 0 to 392 prompt tokens"
    assert {trial["workload"] for trial in report["trials"]} == {"gsm8k"}
