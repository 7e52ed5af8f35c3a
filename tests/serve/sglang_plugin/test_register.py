"""The entry point: once, never raising, and nothing changed where SGLang is not what was read."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlite.serve import guard
from dlite.serve import sglang_plugin as plugin
from dlite.serve.engines import Installed, Missing
from dlite.serve.sglang_plugin.seams import SEAMS
from tests.serve.sglang_plugin import fake


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Source files as the table expects them, and modules to register with."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for where, taken in SEAMS.items():
        file, _, path = where.partition(":")
        kind, _, function = path.rpartition(".")
        kinds.setdefault((file, kind), []).append(f"def {function}({', '.join(taken.split())}): ...")
    for (file, kind), functions in kinds.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        with (tmp_path / file).open("a") as source:
            lines = [f"class {kind}:", *(f"    {one}" for one in functions)] if kind else functions
            source.write("\n".join(lines) + "\n")
    monkeypatch.setattr(plugin, "_registered", False)
    monkeypatch.setattr(guard, "installed", lambda name: Installed(name, "0.5.23"))
    fake.Algorithms.known, fake.Hooks.known = {}, {}
    with fake.modules(SimpleNamespace()):
        importlib.import_module("sglang").__path__ = [str(tmp_path)]
        yield tmp_path


def test_it_registers_once(sglang: Path) -> None:
    plugin.register()
    (name,) = fake.Algorithms.known
    algorithm, factory = fake.Algorithms.known.pop(name)
    assert (name, algorithm.supports_overlap) == ("DLITE", True)
    assert [algorithm.has_draft_kv(), algorithm.need_topk(), algorithm.carries_draft_hidden_states()] == [False] * 3
    assert algorithm.create_future_map("cpu", "pool") == ("cpu", algorithm, "pool", True, False)
    assert factory(None).__name__ == "DLiteWorker"
    assert list(fake.Hooks.known) == ["sglang.srt.managers.scheduler.Scheduler.validate_dllm_request"]
    plugin.register()
    assert fake.Algorithms.known == {}


@pytest.mark.parametrize("where", SEAMS, ids=lambda where: where.rpartition("/")[2])
def test_a_changed_seam_is_named_and_nothing_is_registered(
    sglang: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, _, path = where.partition(":")
    source = (sglang / file).read_text()
    function = path.rpartition(".")[2]
    (sglang / file).write_text(source.replace(f"def {function}(", f"def {function}(surprise, ", 1))
    with caplog.at_level(logging.WARNING, "sglang.dlite"):
        plugin.register()
    assert (fake.Algorithms.known, fake.Hooks.known) == ({}, {})
    (record,) = caplog.records
    assert f"SGLang 0.5.23 is not as expected: {file}:" in record.getMessage()
    assert "takes (surprise, " in record.getMessage()


def test_a_file_that_is_gone(sglang: Path) -> None:
    first = next(iter(SEAMS))
    (sglang / first.partition(":")[0]).unlink()
    assert guard.mismatches(sglang, SEAMS)[0] == f"there is no {first}"


def test_another_version(sglang: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(
        guard, "installed", lambda name: Missing(name, "SGLang 0.6.0 is installed, which dlite does not know")
    )
    plugin.register()
    assert "declines: SGLang 0.6.0 is installed" in caplog.text
    assert fake.Algorithms.known == {}


def test_it_never_raises(sglang: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(fake.Algorithms, "register", None)
    plugin.register()
    assert "could not start: TypeError" in caplog.text


def test_requests_are_refused_for_our_algorithm_alone() -> None:
    def original(scheduler: Any, request: Any) -> str | None:
        return scheduler.theirs

    sampling = SimpleNamespace(
        frequency_penalty=0.5, presence_penalty=0, repetition_penalty=1, min_new_tokens=0, beam_width=None
    )
    request = SimpleNamespace(sampling_params=sampling, custom_logit_processor=None, return_hidden_states=False)
    ours = SimpleNamespace(spec_algorithm=SimpleNamespace(name="DLITE"), theirs=None)
    assert "frequency_penalty is 0.5" in (plugin.refuse(original, ours, request) or "")
    for algorithm in (SimpleNamespace(name="EAGLE"), None):
        assert plugin.refuse(original, SimpleNamespace(spec_algorithm=algorithm, theirs=None), request) is None
    ours.theirs = "SGLang's own word"
    assert plugin.refuse(original, ours, request) == "SGLang's own word"
