"""``dlite generate``."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dlite.commands import options
from dlite.errors import DataError, DliteError, RequestError


def generate(
    target: options.Target = "smollm2-135m",
    drafter: options.Drafter = "shipped",
    prompt: Annotated[
        str | None, typer.Option(help="A user message; with --raw, the text to continue as it is.")
    ] = None,
    messages: Annotated[
        Path | None,
        typer.Option(help="JSON file: a list of OpenAI-style messages, or an object with messages and tools."),
    ] = None,
    batch: Annotated[
        Path | None, typer.Option(help="JSONL of prompts to decode side by side (implies --json, one line a prompt).")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 256,
    k: Annotated[
        int | None, typer.Option("--k", "-K", help="Drafts a round; by default all the drafter makes.")
    ] = None,
    temperature: options.Temperature = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens of this total probability; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens at least this share of the likeliest; 0 is off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages tokens already seen.")] = 1.0,
    rule: Annotated[
        str, typer.Option(help="How sampled drafts are verified: rejection, block or match.")
    ] = "rejection",
    adaptive: Annotated[
        bool,
        typer.Option("--adaptive", help="Verify as many drafts as pay, round by round; none while drafting loses."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Makes sampling repeatable.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given more than once.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming text.")] = False,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
) -> None:
    """Continue a prompt, with a drafter or plainly (--drafter none): the same text, or with a temperature the same
    distribution of texts, in less time.

    Example: dlite generate --prompt "Write a haiku about rivers." --json
    """
    from dlite.api import generate as run
    from dlite.api import load_drafter, load_target
    from dlite.engine.request import Request
    from dlite.sampling import SamplingParams

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        rule=rule,  # type: ignore[arg-type]
        seed=seed,
    )
    if sum(x is not None for x in (prompt, messages, batch)) != 1:
        raise DliteError("give exactly one of --prompt, --messages and --batch. See: dlite generate --help")
    if batch is not None:
        model = load_target(target, device=device, dtype=dtype)
        like = Request((), max_new_tokens, k, sampling, tuple(stop or ()))
        _generate_batch(model, load_drafter(drafter, model), batch, raw, like, adaptive)
        return
    if raw and messages:
        raise DliteError("--raw continues text as it is; --messages are a chat. Expected one of them. Leave one out.")
    if prompt is not None and not prompt.strip():
        raise RequestError("the prompt is empty. Expected some text after --prompt.")
    body = (
        _messages(messages)
        if messages
        else {"text": prompt}
        if raw
        else {"messages": [{"role": "user", "content": prompt}]}
    )
    model = load_target(target, device=device, dtype=dtype)
    result = run(
        model,
        load_drafter(drafter, model),
        **body,
        max_new_tokens=max_new_tokens,
        K=k,
        sampling=sampling,
        stop=tuple(stop or ()),
        on_text=None if as_json else _stream,
        adaptive=adaptive,
    )
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        seconds = result.seconds
        print(
            f"\n\n[{len(result.token_ids)} tokens, {len(result.rounds)} rounds, tau {result.tau:.2f}, prefill "
            f"{seconds.prefill:.2f} s, decode {seconds.decode:.2f} s]",
            file=sys.stderr,
        )


def _generate_batch(target: Any, drafter: Any, path: Path, raw: bool, like: Any, adaptive: bool) -> None:
    """Answer every prompt of a file under the settings of the request ``like``."""
    from dlite.api import generate_batch
    from dlite.data.dialogue import only_ids
    from dlite.data.prompts import read_prompts

    prompts = list(read_prompts(path))
    requests = [replace(like, ids=tuple(only_ids(target.tokenizer, p, raw=raw))) for p in prompts]
    for prompt, answer in zip(prompts, generate_batch(target, drafter, requests, adaptive=adaptive), strict=True):
        print(json.dumps({"id": prompt.id, **answer.to_json()}))


def _messages(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}). Expected a list of messages.") from None
    if isinstance(data, list):
        return {"messages": data}
    if isinstance(data, dict) and isinstance(data.get("messages"), list):
        return {"messages": data["messages"], "tools": data.get("tools")}
    raise DataError(
        f"{path} holds neither a list of messages nor an object with 'messages'. See: dlite generate --help"
    )


def _stream(text: str, accepted: bool) -> None:
    print(text, end="", flush=True)
