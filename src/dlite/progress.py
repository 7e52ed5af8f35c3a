"""Progress on the terminal, on standard error, silent when that is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from dlite.train.loop import Progress as TrainProgress


def _columns() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def counting_bar(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar whose ``advance(count, note)`` moves it on."""
    with _columns() as bar:
        task = bar.add_task(what, total=total, note="")
        yield lambda count, note: bar.update(task, advance=count, note=note)


class TrainBar:
    """A bar of training steps with loss, anchors a second and the last tau."""

    def __init__(self) -> None:
        self._bar = _columns()
        self._task = self._bar.add_task("starting", total=None, note="")

    def __enter__(self) -> TrainBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, now: TrainProgress) -> None:
        """Called after every step."""
        note = f"loss {now.loss:.3f}  {now.blocks_per_second:.0f} anchors/s"
        if now.tau is not None:
            note += f"  tau {now.tau:.2f}"
        self._bar.update(self._task, description=now.stage, completed=now.step, total=now.steps, note=note)
