"""Closed-loop load on an OpenAI-compatible server: so many requests in flight, each followed by the next, streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import httpx

from dlite.audit.server import Count, vllm_count
from dlite.bench.suites import Call
from dlite.errors import DataError


@dataclass(frozen=True)
class LoadSettings:
    """``warmup`` requests a level are answered and forgotten (None: as many as are in flight)."""

    temperature: float = 0.0
    seed: int = 0
    warmup: int | None = None
    timeout: float = 600.0


@dataclass(frozen=True)
class Answered:
    """One request: seconds after the level's start; ``error`` in words, None for an answer that came to its end.

    ``tokens`` as the server counts them (``counted``), else the pieces that came.
    """

    call: str
    start: float
    first: float | None
    end: float
    tokens: int
    counted: bool
    error: str | None = None


@dataclass(frozen=True)
class Level:
    """What came back at one concurrency. ``seconds`` from the first measured request to the last answer's end."""

    concurrency: int
    seconds: float
    answers: tuple[Answered, ...]
    drafts: Count | None


class Server:
    """An OpenAI-compatible server at its /v1 root, and the one model it is asked for."""

    def __init__(self, url: str, model: str | None, settings: LoadSettings) -> None:
        self.url, self.settings = url.rstrip("/"), settings
        self.model, self.context = self._model(model)

    def _model(self, wanted: str | None) -> tuple[str, int | None]:
        """The model to ask for, its only one unless it has the wanted one, and its context if it tells."""
        try:
            answer = httpx.get(f"{self.url}/models", timeout=30)
            answer.raise_for_status()
            models = {str(one["id"]): one.get("max_model_len") for one in answer.json()["data"]}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"the server at {self.url} lists no models ({type(error).__name__} {error}). Expected an OpenAI-compatible /v1 "
                "root, such as http://localhost:8000/v1."
            ) from None
        if wanted not in models and len(models) != 1:
            names = ", ".join(models) or "none"
            raise DataError(
                f"the server at {self.url} has the models {names}. Expected one name. Give it: --target NAME"
            )
        name = wanted if wanted in models else next(iter(models))
        return str(name), models[str(name)]

    def drafts(self) -> Count | None:
        """The server's own counts of drafts so far, where it tells them as vLLM does."""
        try:
            answer = httpx.get(f"{self.url.removesuffix('/v1')}/metrics", timeout=30)
            answer.raise_for_status()
        except httpx.HTTPError:
            return None
        return vllm_count(answer.text.splitlines())

    def body(self, call: Call) -> tuple[str, dict[str, Any]]:
        """(path, body) of a call: messages as a chat, ready ids as a completion."""
        settings = self.settings
        body = {
            "model": self.model,
            "max_tokens": call.max_new_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if call.ids:
            return "/completions", {**body, "prompt": list(call.ids)}
        tools = {"tools": list(call.tools)} if call.tools else {}
        return "/chat/completions", {**body, "messages": list(call.messages), **tools}


def measure(
    server: Server, calls: Sequence[Call], concurrency: int, progress: Callable[[int], None] | None = None
) -> Level:
    """One level: the calls in order, again and again until there are two for each place in flight."""
    count = max(len(calls), 2 * concurrency)
    warmup = concurrency if server.settings.warmup is None else server.settings.warmup
    return asyncio.run(_level(server, calls, concurrency, count, warmup, progress))


async def _level(
    server: Server,
    calls: Sequence[Call],
    concurrency: int,
    count: int,
    warmup: int,
    progress: Callable[[int], None] | None,
) -> Level:
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=server.url, timeout=server.settings.timeout, limits=limits) as client:
        await _flight(client, server, islice(cycle(calls), warmup), concurrency, 0.0, None)
        before = await asyncio.to_thread(server.drafts)
        start = perf_counter()
        answers = await _flight(client, server, islice(cycle(calls), count), concurrency, start, progress)
        after = await asyncio.to_thread(server.drafts)
    return Level(concurrency, max(one.end for one in answers), tuple(answers), since(before, after))


async def _flight(
    client: httpx.AsyncClient,
    server: Server,
    calls: Iterator[Call],
    places: int,
    start: float,
    progress: Callable[[int], None] | None,
) -> list[Answered]:
    """Each of the places takes the next call as soon as its last one is answered."""
    answers: list[Answered] = []

    async def place() -> None:
        for call in calls:
            answers.append(await _ask(client, server, call, start))
            if progress:
                progress(1)

    await asyncio.gather(*(place() for _ in range(places)))
    return answers


async def _ask(client: httpx.AsyncClient, server: Server, call: Call, zero: float) -> Answered:
    path, body = server.body(call)
    begin, first, pieces, told, error, finished = perf_counter(), None, 0, None, None, False
    try:
        async with client.stream("POST", path, json=body) as response:
            if response.is_error:
                text = (await response.aread()).decode(errors="replace")
                error = f"status {response.status_code}: {' '.join(text.split())[:200]}"
            else:
                async for event in _events(response):
                    if event.get("error"):
                        error = f"an error in the stream: {str(event['error'])[:200]}"
                        break
                    usage = event.get("usage")
                    told = usage["completion_tokens"] if usage else told
                    for choice in event.get("choices", ()):
                        if _says(choice):
                            first = perf_counter() if first is None else first
                            pieces += 1
                        finished |= choice.get("finish_reason") is not None
                if error is None and not finished:
                    error = "the stream ended before the answer did"
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as caught:
        error = f"{type(caught).__name__}: {caught}".rstrip(": ")
    end = perf_counter()
    return Answered(
        call.id,
        begin - zero,
        None if first is None else first - zero,
        end - zero,
        pieces if told is None else int(told),
        told is not None,
        error,
    )


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to [DONE]."""
    async for line in response.aiter_lines():
        name, _, data = line.partition(":")
        if name != "data":
            continue
        if data.strip() == "[DONE]":
            return
        yield json.loads(data)


def _says(choice: dict[str, Any]) -> bool:
    """Does this piece bring a token? The role that opens a chat does not."""
    delta = choice.get("delta") or {}
    return bool(
        choice.get("text") or any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))
    )


def since(before: Count | None, after: Count | None) -> Count | None:
    """What was counted in between; None for a server that does not count or did not draft."""
    if after is None:
        return None
    if before is None:
        return after
    rounds = after.rounds - before.rounds
    old = (*before.by_position, *[0] * len(after.by_position))
    positions = tuple(new - past for new, past in zip(after.by_position, old, strict=False))
    if rounds <= 0:
        return None
    return Count(None, rounds, after.proposed - before.proposed, after.accepted - before.accepted, positions)
