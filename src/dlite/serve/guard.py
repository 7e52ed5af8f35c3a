"""What a plug-in relies on in its engine, looked up in the engine's source files before anything is changed.

The files are parsed, not imported: the check costs no import and can be made of a wheel that was only unpacked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from logging import Logger
from pathlib import Path

from dlite.serve.engines import Missing, installed


def enter(engine: str, table: Mapping[str, str], change: Callable[[], None], log: Logger, lost: str) -> None:
    """Call ``change`` if the installed engine is known and as the table expects; else say why not, in one line.

    Never raises: a server that does not use the plug-in must start all the same. ``lost`` is what cannot be served then.
    """
    try:
        reason = declines(engine, table)
        if reason is None:
            change()
        else:
            log.warning("dlite's plug-in declines: %s. %s cannot be served by this engine.", reason, lost)
    except Exception as error:
        log.warning("dlite's plug-in could not start: %s: %s. %s cannot be served.", type(error).__name__, error, lost)


def declines(engine: str, table: Mapping[str, str]) -> str | None:
    """Why a plug-in must change nothing in this engine; None if it may."""
    found = installed(engine)
    if isinstance(found, Missing):
        return found.reason
    wrong = mismatches(Path(import_module(engine).__path__[0]), table)
    return f"{found.label} is not as expected: {wrong[0]}" if wrong else None


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
