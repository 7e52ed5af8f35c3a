"""A whole small adaptation on the toy target: better on held-out calls, resumed for nothing, refused where it must be."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlite.adapt import command, learn
from dlite.adapt.command import adapt_traces, summary
from dlite.adapt.compare import Verdict
from dlite.adapt.report import markdown, read
from dlite.adapt.split import SplitSettings
from dlite.checkpoint import load_drafter
from dlite.errors import ConfigError, DataError
from tests.train.support import equal, weights

from .support import SHORT, make_start, make_target, write_log

SETTINGS = SplitSettings(max_calls=40, held_out_calls=9, turns_per_trace=3, max_new_tokens=16)


def go(folder: Path, *, kind: str = "dlite", settings: SplitSettings = SETTINGS, **options: Any) -> dict[str, Any]:
    """The command into folder/out, with a start and a log made there."""
    target = make_target()
    start, log = folder / "start", folder / "log.jsonl"
    if not start.exists():
        make_start(target, start, kind)
        write_log(log, 16)
    apart = options.pop("apart", [])
    return adapt_traces(
        target, [str(log)], apart, str(start), folder / "out", settings, options.pop("recipe", "dlite-adapt"),
        options.pop("overrides", SHORT), include_loops=True, argv=["dlite", "adapt"], **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("adapt")
    return folder, go(folder)


def test_it_learns_and_keeps_the_better(done: tuple[Path, dict[str, Any]]) -> None:
    folder, report = done
    assert report["kept"] == "after"
    assert report["gain"]["value"] > 0.1
    assert report["lossless"] == {"plain": True, "before": True, "after": True}
    assert equal(weights(folder / "out" / "drafter"), weights(folder / "out" / "run" / "drafter"))
    found, _ = load_drafter(folder / "out" / "drafter", make_target().info)
    begun, _ = load_drafter(folder / "start", make_target().info)
    assert found.config == begun.config


def test_no_held_out_conversation_was_trained_on(done: tuple[Path, dict[str, Any]]) -> None:
    folder, report = done
    answers = [json.loads(line) for line in (folder / "out" / "answers.jsonl").read_text().splitlines()]
    learned = {answer["group"] for answer in answers}
    assert len(learned) == report["learned"]["conversations"]
    assert len(learned) + report["held_out"]["conversations"] <= 16
    assert {row["by"] for row in report["figures"]} == {"all", "context", "turn", "tool"}
    assert {row["arm"] for row in report["spans"]} == {"before", "after"}


def test_the_page_is_made_from_the_json(done: tuple[Path, dict[str, Any]]) -> None:
    folder, report = done
    out = folder / "out"
    assert read(out / "report.json") == report
    page = (out / "report.md").read_text()
    assert page == markdown(report)
    assert report["sentence"] in page
    assert "by context length" in page
    assert str(out / "drafter") in summary(report, out)


def test_again_does_nothing(done: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, report = done

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    for name in ("learn", "compare"):
        monkeypatch.setattr(command, name, never)
    assert go(folder) == report


def test_stopped_anywhere_it_goes_on(done: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: Any) -> None:
    """Ctrl-C behind each part in turn; what was done is not done again, and the figures are those of an unbroken run."""
    _, whole = done
    parts = {learn: ("regenerate", "write_store", "train"), command: ("compare",)}
    for module, names in parts.items():
        for name in names:
            real = getattr(module, name)

            def stopped(*given: Any, real: Any = real, **more: Any) -> None:
                real(*given, **more)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(module, name, stopped)
                with pytest.raises(KeyboardInterrupt):
                    go(tmp_path)
    answers = (tmp_path / "out" / "answers.jsonl").read_bytes()
    drafter = (tmp_path / "out" / "run" / "drafter" / "training.json").stat().st_mtime_ns
    report = go(tmp_path)
    assert (tmp_path / "out" / "answers.jsonl").read_bytes() == answers
    assert (tmp_path / "out" / "run" / "drafter" / "training.json").stat().st_mtime_ns == drafter
    assert report["gain"] == whole["gain"]
    assert [row["tau"] for row in report["figures"]] == [row["tau"] for row in whole["figures"]]


def test_the_old_one_is_kept_where_it_is_better(
    done: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "out" / "report.json").unlink()
    monkeypatch.setattr(command, "verdict", lambda *_, **__: Verdict("before", None, "No."))
    report = go(tmp_path)
    assert (report["kept"], report["gain"]) == ("before", None)
    assert equal(weights(tmp_path / "out" / "drafter"), weights(tmp_path / "start"))
    assert "**No.** Kept: before" in markdown(report)


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
def test_other_kinds(tmp_path: Path, kind: str) -> None:
    report = go(tmp_path, kind=kind, settings=replace(SETTINGS, max_calls=16, held_out_calls=8))
    assert report["drafter"]["kind"] == kind
    assert report["lossless"]["after"]
    losses = report["recipe"]["stages"][0]["losses"]
    assert (losses["confidence"] == 1.0) == (kind == "dspark")


def test_held_out_logs_apart(tmp_path: Path) -> None:
    """Judged on other logs; a conversation that stands in both is not trained on."""
    apart = write_log(tmp_path / "apart.jsonl", 6, name="other")
    both = write_log(tmp_path / "both.jsonl", 3)
    apart.write_text(apart.read_text() + both.read_text())
    report = go(tmp_path, apart=[str(apart)], settings=replace(SETTINGS, held_out_calls=27))
    assert report["held_out"]["conversations"] == 9
    assert report["learned"]["conversations"] == 13


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "few": ({"settings": replace(SETTINGS, max_calls=10)}, DataError, "10 calls to learn from and 9"),
    "share": ({"settings": replace(SETTINGS, held_out=1.0)}, ConfigError, "held-out share is 1.0"),
    "short": ({"settings": replace(SETTINGS, max_new_tokens=1)}, ConfigError, "max_new_tokens is 1"),
    "recipe": ({"recipe": "nowhere"}, ConfigError, "there is no recipe 'nowhere'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(tmp_path: Path, name: str) -> None:
    options, kind, words = MISTAKES[name]
    with pytest.raises(kind, match=words):
        go(tmp_path, **options)
    assert not (tmp_path / "out").exists()


def test_another_run_in_the_same_folder_is_refused(done: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = done
    with pytest.raises(ConfigError, match="begun with another value of its settings"):
        go(folder, settings=replace(SETTINGS, seed=1))
    with pytest.raises(ConfigError, match="begun with another value of its recipe"):
        go(folder, overrides=(*SHORT, "train.seed=2"))


@pytest.mark.parametrize(("name", "words"), [("ngram", "no weights to train"), ("dlite", "Expected its folder")])
def test_only_a_drafter_with_weights(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        adapt_traces(make_target(), ["x"], [], name, tmp_path / "out", SETTINGS, "dlite-adapt", ())
