"""A stand-in for the BFCL package: the same files and names, two small simulators, four sessions."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

CONFIG = """
    MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Shelf": "shelf.json", "Sums": "sums.json"}
    CLASS_FILE_PATH_MAPPING = {"Shelf": "bfcl_eval.simulators", "Sums": "bfcl_eval.simulators"}
    STATELESS_CLASSES = ["Sums"]
"""
SIMULATORS = """
    class Shelf:
        def _load_scenario(self, scenario, long_context=False):
            self.things = list(scenario["things"])

        def put(self, thing, twice=False):
            if thing in self.things:
                raise ValueError("it is there")
            self.things.append(thing)
            return {"things": self.things}

        def drop(self):
            return "gone"

    class Sums:
        def add(self, a: float, b: float):
            return a + b
"""
PUT = {
    "name": "put",
    "description": "puts",
    "parameters": {
        "type": "dict",
        "properties": {"thing": {"type": "string"}, "sizes": {"type": "array", "items": {"type": "float"}}},
    },
    "response": {"type": "dict"},
}
SESSION: dict[str, Any] = {
    "id": "multi_turn_base_0",
    "question": [
        [{"role": "user", "content": "put a book"}],
        [{"role": "user", "content": "add and put it again"}],
        [],
    ],
    "initial_config": {"Shelf": {"things": ["cup"]}},
    "involved_classes": ["Shelf", "Sums"],
    "excluded_function": ["drop"],
}
ANSWERS = [["put(thing='book')"], ["add(1, b=2.5)", "put('book', twice=True)"], []]


def make_bfcl(folder: Path) -> Path:
    """The package under ``folder``, which is to be put on the path."""
    package = folder / "bfcl_eval"
    files = {
        "__init__.py": "",
        "constants/__init__.py": "",
        "constants/executable_backend_config.py": textwrap.dedent(CONFIG),
        "simulators.py": textwrap.dedent(SIMULATORS),
        "data/multi_turn_func_doc/shelf.json": rows(PUT, {**PUT, "name": "drop"}),
        "data/multi_turn_func_doc/sums.json": rows({**PUT, "name": "add"}),
        "data/BFCL_v4_multi_turn_base.json": rows(SESSION),
        "data/possible_answer/BFCL_v4_multi_turn_base.json": rows(
            {"id": "multi_turn_base_0", "ground_truth": ANSWERS},
            {"id": "multi_turn_base_1", "ground_truth": [["fly()"], [], []]},
            {"id": "multi_turn_base_2", "ground_truth": [["__class__"], [], []]},
        ),
    }
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return package


def rows(*records: Any) -> str:
    """JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records)
