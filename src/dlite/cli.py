"""The command line: one verb a file in ``commands/``, put together here."""

from __future__ import annotations

import sys

import typer

from dlite.commands.adapt import adapt
from dlite.commands.audit import audit
from dlite.commands.bench import bench
from dlite.commands.demo import demo
from dlite.commands.doctor import doctor
from dlite.commands.drafters import drafters
from dlite.commands.features import features
from dlite.commands.generate import generate
from dlite.commands.regenerate import regenerate
from dlite.commands.serve import serve
from dlite.commands.study import study
from dlite.commands.train import recipes, train
from dlite.commands.workloads import workloads
from dlite.errors import DliteError

app = typer.Typer(
    help="Train, measure and serve history-free draft models for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
VERBS = (
    generate, regenerate, features, train, bench, demo, recipes, study, audit, adapt, drafters, serve, doctor, workloads
)  # fmt: skip
for verb in VERBS:
    app.command()(verb)


def main() -> None:
    """Entry point: a user's mistake is one sentence and status 2; a fault of ours keeps its traceback."""
    try:
        app()
    except DliteError as error:
        print(f"dlite: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"dlite: {error.filename or 'a file'} cannot be used: {error.strerror or error}.", file=sys.stderr)
        sys.exit(2)
