"""What a plug-in relies on in its engine, looked up in the engine's source files before anything is changed.

The files are parsed, not imported: the check costs no import, and works on a wheel that is not installed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path


def mismatches(root: Path, table: Mapping[str, str]) -> list[str]:
    """What differs in the package at ``root``, in words; empty if all is as expected.

    ``table``: ``file:Class.function`` -> its parameters, separated by blanks.
    """
    wrong = []
    for where, expected in table.items():
        found = parameters(root, where)
        if found is None:
            wrong.append(f"there is no {where}")
        elif found != expected.split():
            wrong.append(f"{where} takes ({', '.join(found)}), expected ({', '.join(expected.split())})")
    return wrong


def parameters(root: Path, where: str) -> list[str] | None:
    """The parameters of ``file:Class.function`` below a package; None if it is not there."""
    file, _, path = where.partition(":")
    try:
        node: ast.AST | None = ast.parse((root / file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return None
    for name in path.split("."):
        node = _last(getattr(node, "body", ()), name)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    return [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _last(body: Sequence[ast.AST], name: str) -> ast.AST | None:
    return next((node for node in reversed(body) if getattr(node, "name", None) == name), None)
