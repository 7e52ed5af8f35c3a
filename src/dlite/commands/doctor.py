"""``dlite doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dlite.commands import options
from dlite.errors import ConfigError

PROMPT = "Write a Python function that returns the n-th Fibonacci number, and explain how it works."


def doctor(
    target: options.Target = "smollm2-135m",
    drafter: Annotated[str, typer.Option(help="'shipped' or the folder of a trained drafter.")] = "shipped",
    golden: Annotated[
        Path | None, typer.Option(help="Compare with this fixture; by default with what training code does now.")
    ] = None,
    make: Annotated[Path | None, typer.Option(help="Write a fixture to this file; nothing is compared.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The text that a new fixture begins with.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a new fixture; 8 by default.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest relative distance of two vectors; by default 0.001, 0.05 in 16 bits.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: options.Device = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
) -> None:
    """Play the same rounds through training code, the decoding engine and installed serving engines, and name what differs.

    The first tensor that differs has a name: tap index, tap norm, stale pivot, token order, history, context, embedding,
    position, slot, id map. Status 1 if one differs.

    Example: dlite doctor --drafter runs/first/drafter
    """
    ignored: dict[str, object] = {"--prompt": prompt, "--rounds": rounds, "--make": make} if golden else {}
    ignored |= {"--tolerance": tolerance} if make else {}
    if given := [name for name, value in ignored.items() if value is not None]:
        other = "--golden" if golden else "--make"
        raise ConfigError(f"{' and '.join(given)} would be ignored beside {other}. Leave one of them out.")
    from dlite.api import load_target, prompt_ids
    from dlite.serve.doctor import examine, network_maker, to_json
    from dlite.serve.golden import load_golden, make_golden, save_golden

    model = load_target(target, device=device, dtype=dtype)
    fresh = network_maker(drafter, model)
    if golden is not None:
        fixture = load_golden(golden)
    else:
        fixture = make_golden(model, fresh, prompt_ids(model, text=prompt or PROMPT), rounds or 8)
    if make is not None:
        save_golden(fixture, make)
        print(f"fixture: {make}")
        return
    results = examine(fixture, model, fresh, tolerance=tolerance)
    if as_json:
        print(json.dumps(to_json(results)))
    else:
        print("\n".join(one.sentence for one in results))
    raise typer.Exit(0 if to_json(results)["healthy"] else 1)
