"""``dlite study``: many drafters, same data, same budget, one report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from dlite.errors import DliteError


def study(
    plan: Annotated[str, typer.Argument(help="A study that ships with dlite (small), or a .toml file.")] = "small",
    out: Annotated[Path, typer.Option(help="Folder of the study; the same command goes on after a stop.")] = Path(
        "out/study"
    ),
    data: Annotated[list[Path] | None, typer.Option(help="Files made by dlite regenerate.")] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=FILE to decode, or a name from dlite workloads; may be given more than once. Without any, arms are "
            "compared at held-out anchors only."
        ),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these arms; may be given more than once.")] = None,
    render: Annotated[
        Path | None, typer.Option(help="Only write this page from the study.json in --out; nothing is run.")
    ] = None,
) -> None:
    """Train a set of drafters on the same data with the same budget and measure them side by side.

    Writes study.json and results.md into --out, with the published figures marked as such beside ours.

    Example: dlite study small --data answers.jsonl --workload gsm8k=gsm8k.jsonl --out out/study
    """
    from dlite.bench.report import write_text
    from dlite.study.plan import load_plan
    from dlite.study.run import study as run
    from dlite.study.tables import markdown, read_study

    if render is not None:
        write_text(markdown(read_study(out / "study.json")), render)
        print(f"page: {render}")
        return
    if not data:
        raise DliteError("give --data at least once, or --render. See: dlite study --help")
    from dlite.api import load_target
    from dlite.progress import counting_bar

    wanted = load_plan(plan)
    names = {arm.name for arm in wanted.arms}
    if unknown := sorted(set(only or ()) - names):
        raise DliteError(f"there is no arm {unknown[0]!r} in {plan}. Expected some of {', '.join(sorted(names))}.")
    target = load_target(wanted.target)
    with counting_bar("capture", wanted.conversations) as advance:
        record = run(
            wanted, target, data, _named(workload or []), out, argv=sys.argv, only=only or (),
            captured=lambda blocks: advance(1, f"{blocks} blocks"), bar=_arm_bar,
        )  # fmt: skip
    write_text(markdown(record), out / "results.md")
    print(f"study: {out / 'study.json'}\npage:  {out / 'results.md'}")


def _named(workloads: list[str]) -> dict[str, Path | None]:
    from dlite.bench.workloads import parse

    items = [item for given in workloads for item in parse(given)]
    for item in items:
        if not item.name:
            raise DliteError(
                f"the workload {item.path!r} has no name. Expected NAME=FILE, or a name of dlite workloads."
            )
    return {item.name: None if item.path is None else Path(item.path) for item in items}


@contextmanager
def _arm_bar(name: str) -> Iterator[Callable[..., None]]:
    from dlite.progress import TrainBar

    print(f"arm {name}", file=sys.stderr)
    with TrainBar() as bar:
        yield bar.show
