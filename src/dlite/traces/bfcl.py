"""BFCL multi-turn sessions from the ``bfcl-eval`` package: its answers are the calls, its simulators give the results."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from dlite.errors import DataError, DliteError, require
from dlite.traces.trace import Trace, UnusableError, make_trace

PACKAGE, PREFIX = "bfcl_eval", "bfcl:"
BACKENDS = "bfcl_eval.constants.executable_backend_config"
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}  # to JSON schema
MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"  # the benchmark's own words


def bfcl_file(name: str) -> Path:
    """The package's file of 'bfcl:multi_turn_base' or another set. Errors: ``DliteError``."""
    folder = _folder()
    found = sorted(folder.glob("BFCL_v*_multi_turn_*.json"))
    sets = {path.stem.split("_", 2)[2]: path for path in found}
    wanted = name.removeprefix(PREFIX)
    if wanted not in sets:
        raise DataError(f"there is no BFCL set {wanted!r}. Expected one of {', '.join(sets)}. Write {PREFIX}NAME.")
    return sets[wanted]


def is_bfcl(record: Mapping[str, Any]) -> bool:
    """A multi-turn session: user turns, the classes involved and what they hold at the start."""
    return isinstance(record.get("involved_classes"), list) and isinstance(record.get("question"), list)


def read_bfcl(record: Mapping[str, Any], name: str) -> Trace:
    """Every step of the answer key is a turn of the assistant: one a call, and one to close each user turn."""
    identity, questions = str(record.get("id", name)), record["question"]
    answers = _answers(identity)
    if answers is None or len(answers) != len(questions):
        raise UnusableError("a BFCL session without its answer key")
    simulators = _simulators(record, identity)
    messages: list[dict[str, Any]] = []
    turns = []
    for question, calls in zip(questions, answers, strict=True):
        messages += question or [{"role": "user", "content": MORE_FUNCTIONS}]
        for call in calls:
            function, result = _performed(call, simulators)
            turns.append(len(messages))
            number = f"call_{len(messages)}"
            messages.append({"role": "assistant", "tool_calls": [{"id": number, "function": function}]})
            messages.append({"role": "tool", "tool_call_id": number, "name": function["name"], "content": result})
        turns.append(len(messages))  # the words that close a turn are not in the answer key
    return make_trace(identity, "BFCL", messages, tools=_tools(record), turns=turns)


def _folder() -> Path:
    try:
        module = require(PACKAGE, extra="bfcl")
    except DliteError as error:
        raise DliteError(
            f"{error} Its own requirements are many and not needed here: pip install --no-deps bfcl-eval mpmath"
        ) from None
    return Path(str(module.__file__)).parent / "data"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


@lru_cache(maxsize=1)
def _answer_key() -> dict[str, list[list[str]]]:
    paths = sorted((_folder() / "possible_answer").glob("BFCL_v*_multi_turn_*.json"))
    return {row["id"]: row["ground_truth"] for path in paths for row in _rows(path)}


def _answers(identity: str) -> list[list[str]] | None:
    return _answer_key().get(identity)


def _simulators(record: Mapping[str, Any], identity: str) -> list[Any]:
    """The session's objects, as they are before the first turn."""
    backends = importlib.import_module(BACKENDS)
    made, config = [], record.get("initial_config") or {}
    for name in record["involved_classes"]:
        if name not in backends.CLASS_FILE_PATH_MAPPING:
            raise UnusableError("a BFCL session with an unknown class")
        simulator = getattr(importlib.import_module(backends.CLASS_FILE_PATH_MAPPING[name]), name)()
        if name not in backends.STATELESS_CLASSES:
            long = "long_context" in identity
            try:
                simulator._load_scenario(copy.deepcopy(config.get(name, {})), long_context=long)
            except Exception:  # a scenario of someone else's making
                raise UnusableError("a BFCL session whose scenario does not load") from None
        made.append(simulator)
    return made


def _performed(call: str, simulators: list[Any]) -> tuple[dict[str, Any], str]:
    """A call of the answer key as a tool call, and what its simulator says to it."""
    node = ast.parse(call, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise UnusableError("a BFCL answer that is not a call")
    name = node.func.id
    methods = [getattr(one, name) for one in simulators if not name.startswith("_") and hasattr(one, name)]
    if not methods:
        raise UnusableError("a BFCL answer that calls an unknown function")
    given = [ast.literal_eval(a) for a in node.args]
    arguments = dict(zip(inspect.signature(methods[0]).parameters, given, strict=False))
    arguments |= {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg}
    try:
        result = methods[0](**arguments)
    except Exception as error:  # what the benchmark shows the model
        result = f"Error during execution: {error}"
    text = result if isinstance(result, str) else json.dumps(result, default=str)
    return {"name": name, "arguments": arguments}, text


def _tools(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Descriptions of every function of the session's classes, but for those it excludes."""
    files = importlib.import_module(BACKENDS).MULTI_TURN_FUNC_DOC_FILE_MAPPING
    excluded = set(record.get("excluded_function") or ())
    rows = (row for name in record["involved_classes"] for row in _documents(files[name]))
    return [
        {"type": "function", "function": {key: _schema(row[key]) for key in ("name", "description", "parameters")}}
        for row in rows
        if row["name"] not in excluded
    ]


@lru_cache(maxsize=32)
def _documents(file: str) -> tuple[dict[str, Any], ...]:
    return tuple(_rows(_folder() / "multi_turn_func_doc" / file))


def _schema(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: TYPES.get(v, v) if k == "type" and isinstance(v, str) else _schema(v) for k, v in value.items()}
    return [_schema(v) for v in value] if isinstance(value, list) else value
