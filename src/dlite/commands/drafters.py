"""``dlite drafters``: which there are, what they read and what they keep."""

from __future__ import annotations

from typing import Annotated

import typer


def drafters(
    target: Annotated[
        str, typer.Option(help="Hub id, folder, .gguf file, or built-in name (smollm2-135m); only its sizes are read.")
    ] = "smollm2-135m",
    context: Annotated[int, typer.Option(min=1, help="Tokens of a request that the state is counted for.")] = 8192,
) -> None:
    """List the drafters: the context they read, their state a request in bytes, their head, their paper.

    context: none; the states of the pivot, of a window or of all positions; or the text alone. State is that of the
    drafter's own recipe, or of the default settings. Trained ones are used by their folder (made by dlite train),
    the others by name.

    Example: dlite drafters --target Qwen/Qwen3-4B --context 32768
    """
    from dlite.drafters.facts import facts
    from dlite.target.load import load_info

    rows = [("name", "context", "state/token", "state/request", "trained", "head", "paper")]
    for one in facts(load_info(target), context):
        state = tuple(f"{size:,}" for size in one.state) if one.state else ("-", one.note or "-")
        about = (one.about.context, one.about.head, one.about.paper) if one.about else ("-", "-", "-")
        rows.append((one.name, about[0], *state, "yes" if one.trained else "no", *about[1:]))  # type: ignore[arg-type]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(w) if i in (2, 3) else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
