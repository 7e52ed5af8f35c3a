"""Regeneration through an OpenAI-compatible server that serves the target and returns token ids.

Prompts are rendered and tokenised here, by the target's own tokenizer, and sent as ids; ids come back. Nothing is
tokenised twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dlite.data.answers import Answers, Progress, Tally
from dlite.data.dialogue import Dialogue
from dlite.data.prompts import Prompt
from dlite.data.regenerate import RegenerateSettings
from dlite.errors import DataError
from dlite.target.hf import tokenizer_hash


@dataclass(frozen=True)
class Reply:
    """One answer of the server; ``finished`` is False where its length limit cut it."""

    tokens: tuple[int, ...]
    finished: bool


@dataclass(frozen=True)
class Server:
    """A server that serves ``model``."""

    client: httpx.Client
    model: str
    settings: RegenerateSettings

    def context(self) -> int | None:
        """The context length of the model, if the server tells it, as vLLM and SGLang do."""
        try:
            models = self.client.get("/models").json()["data"]
            return next(int(m["max_model_len"]) for m in models if m["id"] == self.model)
        except (httpx.HTTPError, ValueError, LookupError, TypeError, StopIteration):
            return None

    def answer(self, dialogue: Dialogue, context: int) -> Reply:
        """What the target says next. Errors: ``DataError`` when the server refuses, or returns no token ids."""
        sampling = self.settings.sampling_of(dialogue.prompt)
        body = {
            "model": self.model,
            "prompt": dialogue.ids,
            "max_tokens": min(self.settings.max_new_tokens, context - len(dialogue.ids)),
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "return_token_ids": True,
        }
        try:
            response = self.client.post("/completions", json=body)
            response.raise_for_status()
            choice = response.json()["choices"][0]
            tokens, reason = choice.get("token_ids"), choice.get("finish_reason")
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"the server at {self.client.base_url} did not answer prompt {dialogue.prompt.id!r}: {type(error).__name__} "
                f"{error}. Expected an OpenAI-compatible /v1 root. What was answered before is intact; run the same command "
                "to go on."
            ) from None
        if not isinstance(tokens, list):
            raise DataError(
                f"the server at {self.client.base_url} returned no token_ids. Expected one that honours return_token_ids, "
                "such as vLLM 0.10 or newer: text would have to be tokenised again, which loses the exact ids."
            )
        return Reply(tuple(tokens), reason == "stop")


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
    with (
        Answers(out, settings.made(model, tokenizer_hash(tokenizer)), progress) as answers,
        httpx.Client(base_url=server.rstrip("/"), timeout=600) as client,
        ThreadPoolExecutor(settings.batch) as pool,
    ):
        serving = Server(client, model, settings)
        context = serving.context() or int(tokenizer.model_max_length)
        work = _Work(serving, answers, pool, tokenizer, context, {})
        for dialogue in answers.missing(prompts, tokenizer, settings.limit(context)):
            work.begin(dialogue)
            while len(work.running) >= settings.batch:
                work.collect()
        while work.running:
            work.collect()
    return answers.tally


@dataclass(frozen=True)
class _Work:
    """Requests in flight."""

    server: Server
    answers: Answers
    pool: ThreadPoolExecutor
    tokenizer: Any
    context: int
    running: dict[Future[Reply], Dialogue]

    def begin(self, dialogue: Dialogue) -> None:
        """Ask for the next answer."""
        self.running[self.pool.submit(self.server.answer, dialogue, self.context)] = dialogue

    def collect(self) -> None:
        """Write what has come to its end and ask on where turns are left; if a request failed, write the rest and raise."""
        finished, others = wait(self.running, return_when=FIRST_COMPLETED)
        failed = [future for future in finished if future.exception()]
        if failed:  # keep what the others still answer before giving up
            finished = wait(others).done | finished
        for future in finished:
            dialogue = self.running.pop(future)
            if future.exception():
                continue
            reply = future.result()
            dialogue.add_answer(reply.tokens)
            if not (reply.finished and dialogue.next_turn(self.tokenizer, self.context)):
                self.answers.write(dialogue, finished=reply.finished)
            elif not failed:
                self.begin(dialogue)
        for future in failed:
            future.result()  # raises
