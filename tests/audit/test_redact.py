"""A redacted report holds nothing that was said, asked or called."""

from __future__ import annotations

import json
from typing import Any

from dlite.audit.page import html
from dlite.audit.replay import Replay
from dlite.audit.report import Judging, Reading, replay_report
from dlite.traces.skipped import Skipped

from .support import LyingTarget, costs_of, make_replay, talker


def redact(target: Any, done: Replay) -> dict[str, Any]:
    skipped = Skipped()
    skipped.note("not JSON in UTF-8", "secret-trace.jsonl, line 1")
    return replay_report(target, Reading(("log",), {}, skipped), done, costs_of(done), [], Judging(True, True))


def test_no_text_no_ids_no_names(target: Any, done: Replay) -> None:
    made = redact(target, done)
    text = json.dumps(made)
    for name in ("one, message", "three, message", "bash", "grep", "secret-trace"):
        assert name not in text
        assert name not in html(made)
    tokens = [token for sample in made["samples"] for answer in sample["answers"] for token in answer["tokens"]]
    assert {text for text, *_ in tokens} == {""}
    assert {source for *_, source in tokens} == {"guesser", "target"}
    assert {sample["turn"] for sample in made["samples"]} <= {turn["id"] for turn in made["turns"]}
    assert "<pre>" not in html(made)
    assert all("ids" not in trial for trial in made["trials"])
    assert made["redacted"] is True


def test_what_belongs_together_stays_together(target: Any, done: Replay, report: dict[str, Any]) -> None:
    made = redact(target, done)
    assert [t["turn"] for t in made["trials"][::6]] == [t["id"] for t in made["turns"]]
    assert [t["trace"] for t in made["turns"]] == ["trace 1"] * 3 + ["trace 2"] * 3 + ["trace 3"] * 3
    assert made["turns"][4]["id"] == "trace 2, turn 2"
    assert (
        {t["tool"] for t in made["turns"]}
        == {r["group"] for r in made["figures"] if r["by"] == "tool"}
        == {"tool 1", "tool 2"}
    )
    assert [r["tau"] for r in made["figures"]] == [r["tau"] for r in report["figures"]]


def test_differences_keep_their_logits_only() -> None:
    target = talker(LyingTarget)
    target.off = 100.0
    made = redact(target, make_replay(target, steps=2))
    (first, *_) = made["arms"][1]["differences"]
    assert first["plain_token"] is None
    assert first["turn"].startswith("trace ")
    assert "leaves plain decoding" in html(made)
