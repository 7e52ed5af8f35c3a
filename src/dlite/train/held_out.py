"""The real acceptance length while a drafter trains: the decoding engine on held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.engine.stats import acceptance_by_position, is_looping, tau
from dlite.target.base import Target


def held_out_tau(target: Target, drafter: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> dict[str, Any]:
    """tau and acceptance by position over prompts never trained on, looping answers left out."""
    engine = Engine(target, drafter, max_batch=8)
    numbers = [engine.submit(Request(ids, tokens)) for ids in prompts]
    engine.run()
    answers = [engine.result(n) for n in numbers]
    rounds = [r for a in answers if not is_looping(a.token_ids) for r in a.rounds]
    shares = [round(x, 4) for x in acceptance_by_position(rounds)]
    return {"tau": round(tau(rounds), 4), "acceptance_by_position": shares, "rounds": len(rounds)}
