from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlite.errors import DataError, DliteError
from dlite.traces import bfcl
from dlite.traces.read import read_traces
from dlite.traces.skipped import Skipped
from dlite.traces.trace import UnusableError

from .support import SESSION, make_bfcl


def forget() -> None:
    bfcl._answer_key.cache_clear()
    bfcl._documents.cache_clear()
    for name in [n for n in sys.modules if n.split(".")[0] == "bfcl_eval"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    forget()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield make_bfcl(tmp_path)
    forget()


def test_a_session_is_played_through_its_simulators(package: Path) -> None:
    skipped = Skipped()
    (trace,) = read_traces("bfcl:multi_turn_base", skipped)
    assert skipped.total == 0
    said = [(m["role"], m["content"]) for m in trace.messages]
    assert said == [
        ("user", "put a book"),
        ("assistant", ""),
        ("tool", '{"things": ["cup", "book"]}'),
        ("user", "add and put it again"),
        ("assistant", ""),
        ("tool", "3.5"),
        ("assistant", ""),
        ("tool", "Error during execution: it is there"),
        ("user", bfcl.MORE_FUNCTIONS),
    ]
    calls = [c["function"] for m in trace.messages for c in m.get("tool_calls", ())]
    assert calls[1] == {"name": "add", "arguments": {"a": 1, "b": 2.5}}
    assert calls[2] == {"name": "put", "arguments": {"thing": "book", "twice": True}}
    assert trace.messages[2]["tool_call_id"] == trace.messages[1]["tool_calls"][0]["id"]
    assert trace.turns == (1, 3, 4, 6, 8, 9)  # every call, and the words that close each user turn


def test_schemas_become_json_schemas_and_excluded_functions_go(package: Path) -> None:
    (trace,) = read_traces("bfcl:multi_turn_base", Skipped())
    assert [t["function"]["name"] for t in trace.tools] == ["put", "add"]
    schema = trace.tools[0]["function"]["parameters"]
    assert schema["type"] == "object"
    assert schema["properties"]["sizes"] == {"type": "array", "items": {"type": "number"}}
    assert "response" not in trace.tools[0]["function"]


def test_the_sets_own_file_is_known_by_its_contents(package: Path) -> None:
    assert [t.layout for t in read_traces(package / "data" / "BFCL_v4_multi_turn_base.json", Skipped())] == ["BFCL"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "unheard_of"}, "without its answer key"),
        ({"question": []}, "without its answer key"),
        ({"id": "multi_turn_base_1"}, "calls an unknown function"),
        ({"id": "multi_turn_base_2"}, "an answer that is not a call"),
        ({"involved_classes": ["Rocket"]}, "an unknown class"),
        ({"initial_config": {"Shelf": {}}}, "whose scenario does not load"),
    ],
)
def test_sessions_that_cannot_be_played_are_reasons(package: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableError, match=reason.replace("an answer", "a BFCL answer")):
        bfcl.read_bfcl({**SESSION, **change}, "x")


def test_an_unknown_set_and_a_missing_package(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"no BFCL set 'simple'. Expected one of multi_turn_base. Write bfcl:NAME"):
        bfcl.bfcl_file("bfcl:simple")
    forget()
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("bfcl_eval"):
            raise ImportError("no bfcl_eval")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(DliteError, match="'bfcl_eval' is not installed.*pip install --no-deps bfcl-eval mpmath"):
        bfcl.bfcl_file("bfcl:multi_turn_base")
