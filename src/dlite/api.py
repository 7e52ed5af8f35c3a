"""The few names most programs need; they read like transformers.

target = load_target("smollm2-135m")
drafter = load_drafter("shipped", target)
answer = generate(target, drafter, messages=[{"role": "user", "content": "Hello"}])
print(answer.text, answer.tau)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlite.data.chat import encode, render
from dlite.drafters import load_drafter
from dlite.drafters.base import Drafter
from dlite.engine.control import Control
from dlite.engine.decode import Engine
from dlite.engine.request import Event, Request
from dlite.errors import RequestError
from dlite.sampling import SamplingParams
from dlite.target.base import Target
from dlite.target.load import load_target
from dlite.types import Generation

__all__ = ["generate", "generate_batch", "load_drafter", "load_target", "prompt_ids"]

OnText = Callable[[str, bool], None]


def generate(
    target: Target,
    drafter: Drafter,
    *,
    text: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    ids: Sequence[int] | None = None,
    max_new_tokens: int = 256,
    K: int | None = None,
    sampling: SamplingParams | None = None,
    stop: Sequence[str] = (),
    on_text: OnText | None = None,
    adaptive: bool = False,
) -> Generation:
    """Continue one prompt, given as text, messages (with tools) or token ids.

    ``on_text(piece, accepted)`` is called as text appears, ``accepted`` telling drafts from the target's own tokens.
    ``adaptive`` lets each round verify as many drafts as pay, and stops drafting where it does not.
    Errors: ``RequestError`` for a prompt or setting that cannot be served.
    """
    prompt = prompt_ids(target, text=text, messages=messages, tools=tools, ids=ids)
    engine = Engine(target, drafter, max_batch=1, control=Control() if adaptive else None)
    request = Request(prompt, max_new_tokens, K, sampling or SamplingParams(), tuple(stop))
    number = engine.submit(request, None if on_text is None else _pieces(on_text))
    engine.run()
    return engine.result(number)


def generate_batch(
    target: Target, drafter: Drafter, requests: Sequence[Request], *, max_batch: int = 8, adaptive: bool = False
) -> list[Generation]:
    """Many requests at once, each decoded as it would be alone; results in the order of the requests."""
    engine = Engine(target, drafter, max_batch=max_batch, control=Control() if adaptive else None)
    numbers = [engine.submit(request) for request in requests]
    engine.run()
    return [engine.result(number) for number in numbers]


def prompt_ids(
    target: Target,
    *,
    text: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    ids: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Token ids of a prompt in whichever form it is given; messages go through the target's chat template."""
    given = [x for x in (text, messages, ids) if x is not None]
    if len(given) != 1:
        raise RequestError(f"{len(given)} prompts were given. Expected exactly one of text, messages and ids.")
    if messages is not None:
        return tuple(render(target.tokenizer, messages, tools))
    return tuple(ids) if ids is not None else tuple(encode(target.tokenizer, text or ""))


def _pieces(on_text: OnText) -> Callable[[Event], None]:
    def sink(event: Event) -> None:
        for piece, accepted in event.pieces:
            on_text(piece, accepted)

    return sink
