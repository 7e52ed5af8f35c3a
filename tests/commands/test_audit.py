"""``dlite audit`` from the outside: a page and a JSON for traces and for a server's log; a mistake is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlite.audit import command
from dlite.checkpoint import save_drafter
from dlite.target.load import load_target
from tests.data.support import PLAIN, target_folder
from tests.support import Run, tiny_drafter

ASK = {"role": "user", "content": "what is it?"}
STEP = {"role": "assistant", "content": "so\n```bash\nls\n```"}
SEEN = {"role": "tool", "tool_call_id": "1", "content": "secret words"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}],
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target_folder(tmp_path_factory.mktemp("target"), context=400)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    folder = tmp_path_factory.mktemp("run") / "drafter"
    loaded = load_target(str(target))
    save_drafter(tiny_drafter(loaded), folder, loaded.info)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    records: list[Any] = [
        {"messages": [ASK, CALL, SEEN, STEP, ASK, STEP], "tools": [{"name": "look"}]},
        {"instance_id": "a", "messages": [ASK, STEP, ASK, STEP]},
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + "{broken\n")
    return path


def audit(dlite: Run, *arguments: object) -> tuple[int, str, str]:
    return dlite("audit", *arguments)


def test_a_page_and_a_json(dlite: Run, target: Path, drafter: Path, log: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--max-new-tokens", 12, "-K", 2, "-K", 4, "--max-calls", 4, "--include-loops")
    status, said, note = audit(dlite, log, "--target", target, "--drafter", drafter, "--out", out, *options)
    assert status == 0, note
    report = json.loads((out / "report.json").read_text())
    assert [arm["name"] for arm in report["arms"]] == ["plain", *(f"{drafter.parent.name} K={K}" for K in (2, 4))]
    assert [arm["lossless"] for arm in report["arms"]] == [True] * 3
    assert report["reading"]["skipped"] == [
        {"reason": "not JSON in UTF-8", "count": 1, "places": ["log.jsonl, line 3"]}
    ]
    assert len(report["turns"]) == 4
    assert {"look", "bash: ls"} <= {turn["tool"] for turn in report["turns"]}
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert str(out / "report.html") in said
    assert report["advice"]["headline"] in said


def test_plain_only_and_redacted(dlite: Run, target: Path, log: Path, tmp_path: Path) -> None:
    options = ("--max-new-tokens", 6, "--redact", "--reuse", "on", "--max-calls", 2)
    status, _, note = audit(dlite, log, "--target", target, "--drafter", "none", "--out", tmp_path, *options)
    assert status == 0, note
    for name in ("report.json", "report.html"):
        assert "secret" not in (tmp_path / name).read_text()


def test_a_servers_log(dlite: Run, tmp_path: Path) -> None:
    path = tmp_path / "server.jsonl"
    path.write_text('{"context": 100, "proposed": 4, "accepted": 2}\n{"context": 9000, "proposed": 4, "accepted": 0}\n')
    status, said, _ = audit(dlite, "--server-log", path, "--out", tmp_path / "out")
    assert status == 0
    assert said.startswith("A round commits 2.00 tokens on this server.")
    assert (tmp_path / "out" / "report.html").exists()


def test_a_template_that_cannot_is_told_and_plain_can(dlite: Run, log: Path, tmp_path: Path) -> None:
    target = target_folder(
        tmp_path / "t",
        PLAIN.replace(
            "{% for m in messages %}",
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}",
        ),
        context=400,
    )
    options = ("--target", target, "--drafter", "none", "--max-new-tokens", 4, "--out", tmp_path / "out")
    status, said, _ = audit(dlite, log, *options)
    assert status == 0
    reasons = [
        one["reason"] for one in json.loads((tmp_path / "out" / "report.json").read_text())["reading"]["skipped"]
    ]
    assert any("--plain" in reason for reason in reasons)
    status, said, _ = audit(dlite, log, "--plain", *options)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len({turn["trace"] for turn in report["turns"]}) == 2
    assert "chat template" not in said


def test_ctrl_c_writes_what_was_measured(
    dlite: Run, target: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = command.replay

    def tired(*arguments: Any) -> Any:
        def advance(count: int, note: str) -> None:
            raise KeyboardInterrupt

        return real(*arguments[:-1], advance)

    monkeypatch.setattr(command, "replay", tired)
    options = ("--target", target, "--drafter", "none", "--max-new-tokens", 4, "--out", tmp_path / "out")
    status, said, _ = audit(dlite, log, *options)
    assert status == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["interrupted"]
    assert len(report["turns"]) == 1
    assert "Ctrl-C ended the run" in said


def test_ctrl_c_before_anything_is_one_sentence(
    dlite: Run, target: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("dlite.audit.replay._Server.trials", stop)
    status, _, err = audit(dlite, log, "--target", target, "--drafter", "none", "--out", tmp_path / "out")
    assert status == 2
    assert "interrupted before a turn was measured" in err


MISTAKES: dict[str, tuple[list[str], str]] = {
    "nothing to audit": ([], "give either TRACES or --server-log"),
    "both": (["LOG", "--server-log", "LOG"], "give either TRACES or --server-log"),
    "missing log": (["nowhere.jsonl"], "there is no file or folder nowhere.jsonl"),
    "no conversations": (["EMPTY"], "can be replayed: there are none. Expected a log of conversations"),
    "nothing usable": (["BROKEN"], "can be replayed: 1 a layout that is not known (broken.jsonl, line 1)"),
    "an empty file": (["HOLLOW"], "can be replayed: there are none. Expected a log of conversations"),
    "no answers to write": (["SILENT"], "1 no turn for the assistant to write (silent.jsonl, line 1)"),
    "too long for the target": (["LONG"], "a turn behind more tokens than fit"),
    "a folder that is a file": (["LOG", "--out", "LOG"], "log.jsonl is a file. Expected a folder for the report"),
    "nothing fits": (["LOG", "--max-context", "5"], "a turn behind more tokens than fit"),
    "no room": (["LOG", "--max-new-tokens", "900"], "the context range is 0 to -500"),
    "too few tokens": (["LOG", "--max-new-tokens", "1"], "max_new_tokens is 1. Expected 2 or more"),
    "no calls": (["LOG", "--max-calls", "0"], "0 calls, 4 a trace"),
    "reuse": (["LOG", "--reuse", "maybe"], "--reuse is 'maybe'. Expected both, on or off"),
    "concurrency": (["LOG", "--concurrency", "0"], "the concurrency is 0. Expected 1 or more"),
    "K without a drafter": (["LOG", "-K", "2"], "K is 2, but no drafter is given"),
    "unknown drafter": (["LOG", "--drafter", "nowhere"], "there is no drafter 'nowhere'"),
    "unknown set": (["bfcl:unheard_of"], "bfcl"),
    "a server's log without counts": (["--server-log", "LOG"], "has no counts of drafts"),
    "temperature": (["LOG", "--temperature", "-1"], "temperature is -1.0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_status_2(dlite: Run, target: Path, log: Path, tmp_path: Path, name: str) -> None:
    arguments, words = MISTAKES[name]
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "hollow.jsonl").write_text("")
    (tmp_path / "silent.jsonl").write_text(json.dumps({"messages": [STEP, STEP]}) + "\n")
    (tmp_path / "long.jsonl").write_text(json.dumps({"id": "long", "messages": [{**ASK, "content": "x " * 400}, STEP]}))
    places = {name.upper(): tmp_path / f"{name}.jsonl" for name in ("hollow", "silent", "long")}
    places |= {"LOG": log, "EMPTY": tmp_path / "empty.jsonl", "BROKEN": tmp_path / "broken.jsonl"}
    given = [places.get(a, a) for a in arguments]
    plain = [] if "--drafter" in arguments else ["--drafter", "none"]
    out = [] if "--out" in arguments else ["--out", tmp_path / "out"]
    status, said, err = audit(dlite, *given, *plain, *out, "--target", target)
    assert status == 2
    assert said == ""
    assert err.startswith("dlite: ")
    assert words in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_without_a_chat_template_plain_is_offered(dlite: Run, log: Path, tmp_path: Path) -> None:
    target = target_folder(tmp_path / "t", None, context=400)
    options = ("--target", target, "--drafter", "none", "--max-new-tokens", 4, "--out", tmp_path / "out")
    status, _, err = audit(dlite, log, *options)
    assert (status, "--plain" in err) == (2, True)
    assert audit(dlite, log, "--plain", *options)[0] == 0
