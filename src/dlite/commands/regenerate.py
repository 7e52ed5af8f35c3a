"""``dlite regenerate``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dlite.commands import options
from dlite.errors import DataError, DliteError


def regenerate(
    prompts: Annotated[
        list[Path], typer.Argument(help="JSONL prompt files: prompt, messages (+tools), turns, agent logs and others.")
    ],
    out: Annotated[Path, typer.Option(help="Where conversations are appended; run again to go on after a stop.")],
    target: options.Target = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option(help="Speed regeneration up with a drafter you have; greedy answers are the same.")
    ] = "none",
    server: Annotated[
        str | None, typer.Option(help="Use an OpenAI-compatible server at this URL instead of a local target.")
    ] = None,
    max_new_tokens: options.LongestAnswer = 512,
    batch: Annotated[int, typer.Option(help="Requests in flight.")] = 64,
    limit: Annotated[int | None, typer.Option(help="Prompts to take from each file.")] = None,
    calls_per_trace: Annotated[int, typer.Option(help="Assistant turns to answer in each agent trace.")] = 4,
    max_context: options.LongestPrompt = None,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(help="Makes sampling and the choice of trace turns repeatable.")] = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
) -> None:
    """Have the target itself answer every prompt: the only text a drafter should be trained on.

    Token ids are kept exactly as generated. Answers cut by the limit or caught in a loop are marked. --out can
    only be continued with the settings it was begun with.

    Example: dlite regenerate prompts.jsonl --out answers.jsonl --limit 2000
    """
    from dlite.api import load_drafter, load_target
    from dlite.data.regenerate import RegenerateSettings
    from dlite.data.regenerate import regenerate as run
    from dlite.data.remote import regenerate_remote
    from dlite.progress import counting_bar
    from dlite.sampling import SamplingParams
    from dlite.target.load import load_tokenizer

    given = {"--drafter": drafter != "none", "--device": device != "cpu", "--dtype": dtype != "float32"}
    if server is not None and (local := [name for name, is_given in given.items() if is_given]):
        raise DliteError(
            f"{' and '.join(local)} would be ignored: with --server the server decides how answers are made. Leave "
            f"{'it' if len(local) == 1 else 'them'} out, or leave --server out."
        )
    wanted = list(_read_prompts(prompts, limit, calls_per_trace, max_context, seed))
    sampling = SamplingParams(temperature=temperature, seed=seed)
    settings = RegenerateSettings(max_new_tokens, batch, max_context, sampling)
    with counting_bar("answers", len(wanted)) as advance:
        tokens = 0

        def seen(conversation: Any) -> None:
            nonlocal tokens
            tokens += sum(conversation.wrote)
            advance(1, f"{tokens} tokens")

        if server is None:
            model = load_target(target, device=device, dtype=dtype)
            tally = run(model, load_drafter(drafter, model), wanted, out, settings, seen)
        else:
            tally = regenerate_remote(server, target, wanted, out, settings, seen, tokenizer=load_tokenizer(target))
    print(json.dumps(asdict(tally) | {"out": str(out)}))


def _read_prompts(
    paths: list[Path], limit: int | None, calls: int, max_context: int | None, seed: int
) -> Iterator[Any]:
    from itertools import islice

    from dlite.data.prompts import read_prompts

    names = [path.name.split(".")[0] for path in paths]
    if len(set(names)) < len(names):
        raise DataError(f"two prompt files share a name among {', '.join(names)}. Ids come from names: rename one.")
    for path in paths:
        chars = None if max_context is None else 4 * max_context
        yield from islice(read_prompts(path, calls_per_trace=calls, max_chars=chars, seed=seed), limit)
