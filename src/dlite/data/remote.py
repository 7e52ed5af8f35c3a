"""Regeneration through an OpenAI-compatible server that serves the target and returns token ids.

Prompts are rendered and tokenised here, by the target's own tokenizer, and sent as ids; ids come back. Nothing is
tokenised twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import httpx

from dlite.data.chat import render
from dlite.data.conversations import to_record
from dlite.data.jsonl import JsonlWriter
from dlite.data.prompts import Prompt
from dlite.data.regenerate import Progress, RegenerateSettings, Tally, finished_ids, prompt_seed
from dlite.engine.stats import is_looping
from dlite.errors import DataError
from dlite.types import Conversation


def regenerate_remote(
    server: str,
    model: str,
    prompts: Iterable[Prompt],
    out: Path,
    settings: RegenerateSettings,
    progress: Progress | None = None,
    *,
    tokenizer: Any,
) -> Tally:
    """Answer every prompt not yet in ``out`` through ``server`` (its /v1 root), ``settings.batch`` at a time.

    Errors: ``DataError`` when the server cannot be reached, refuses, or returns no token ids.
    """
    done, tally = finished_ids(out), Tally()
    running: set[Future[Conversation]] = set()
    with (
        httpx.Client(base_url=server.rstrip("/"), timeout=600) as client,
        ThreadPoolExecutor(settings.batch) as pool,
        JsonlWriter(out) as writer,
    ):
        for prompt in prompts:
            if prompt.id in done:
                tally.resumed += 1
                continue
            ids = render(tokenizer, _opening(prompt), prompt.tools)
            if settings.max_context is not None and len(ids) > settings.max_context:
                tally.too_long += 1
                continue
            done.add(prompt.id)
            running.add(pool.submit(_answer, client, model, prompt, ids, settings))
            if len(running) >= settings.batch:
                running = _collect(running, writer, tally, progress)
        while running:
            running = _collect(running, writer, tally, progress)
    return tally


def _opening(prompt: Prompt) -> list[Any]:
    if len(prompt.turns) > 1:
        raise DataError(
            f"prompt {prompt.id!r} has {len(prompt.turns)} turns. A server answers one; give the first turn alone, or use a "
            "local target."
        )
    return [*prompt.messages, *({"role": "user", "content": turn} for turn in prompt.turns)]


def _answer(
    client: httpx.Client, model: str, prompt: Prompt, ids: list[int], settings: RegenerateSettings
) -> Conversation:
    body = {
        "model": model,
        "prompt": ids,
        "max_tokens": settings.max_new_tokens,
        "temperature": settings.sampling.temperature,
        "seed": prompt_seed(settings.sampling.seed, prompt.id),
        "return_token_ids": True,
    }
    try:
        response = client.post("/completions", json=body)
        response.raise_for_status()
        choice = response.json()["choices"][0]
        answer, reason = choice.get("token_ids"), choice.get("finish_reason")
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"the server at {client.base_url} did not answer prompt {prompt.id!r}: {type(error).__name__} {error}. Expected an "
            "OpenAI-compatible /v1 root. What was answered before is intact; run the same command to go on."
        ) from None
    if not isinstance(answer, list):
        raise DataError(
            f"the server at {client.base_url} returned no token_ids. Expected one that honours return_token_ids, such as "
            "vLLM 0.10 or newer: text would have to be tokenised again, which loses the exact ids."
        )
    wrote = (False,) * len(ids) + (True,) * len(answer)
    return Conversation(prompt.id, prompt.source, (*ids, *answer), wrote, reason == "stop", is_looping(answer))


def _collect(
    running: set[Future[Conversation]], writer: JsonlWriter, tally: Tally, progress: Progress | None
) -> set[Future[Conversation]]:
    finished, running = wait(running, return_when=FIRST_COMPLETED)
    failed = [future for future in finished if future.exception()]
    if failed and running:  # keep what the others still answer before giving up
        more, running = wait(running)
        finished |= more
    for future in finished:
        if future.exception():
            continue
        conversation = future.result()
        writer.write(to_record(conversation))
        tally.add(conversation)
        if progress:
            progress(conversation)
    for future in failed:
        future.result()  # raises
    return running
