"""Write docs/cli.md: every command's --help, at a fixed width, so that the file is the same on every terminal."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from typer.main import get_command

from dlite.cli import app

WIDTH = 100
PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Command reference

Made from `--help` by `make docs`; a test compares. [guide.md](guide.md) shows the commands at work.

Every command prints progress on standard error and results on standard output. A mistake in the input is one sentence
on standard error and exit status 2. `regenerate`, `features` and `train` go on where they stopped when they are run again.
"""


def render() -> str:
    """The whole page."""
    group = get_command(app)
    root = group.make_context("dlite", [], terminal_width=WIDTH, resilient_parsing=True)
    parts = [HEAD, _block(root.get_help())]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        context = type(root)(command, info_name=name, parent=root, terminal_width=WIDTH)
        parts += [f"## dlite {name}\n", _block(context.get_help())]
    return "\n".join(parts)


def _block(text: str) -> str:
    lines = (line.rstrip() for line in inspect.cleandoc(text).splitlines())
    return "```text\n" + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)
