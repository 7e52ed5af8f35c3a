"""What a round is made of on this machine: plain step, transformers' step, verification, draft; alternated, medians.

    python benchmarks/costs.py --drafter shipped --repeats 31

Prints one JSON object: milliseconds, the ratios that decide whether drafting pays, and draft time at a short and a
long context (a history-free drafter must not notice the difference).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dlite.drafters import load_drafter
from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.provenance import provenance
from dlite.target.load import converted, load_target, packaged_gguf
from dlite.types import Round


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="shipped")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--context", type=int, default=128, help="tokens before the measured steps")
    parser.add_argument("--long-context", type=int, default=8000)
    options = parser.parse_args()
    torch.manual_seed(0)
    target = load_target("smollm2-135m")
    plain_model = AutoModelForCausalLM.from_pretrained(
        str(converted(packaged_gguf("smollm2-135m"))), dtype=torch.float32
    ).eval()
    drafter: Any = load_drafter(options.drafter, target)
    prompt = tuple(torch.randint(0, target.info.vocab_size, (options.context,)).tolist())

    cache = target.new_cache(1, options.context + 64)
    target.forward(torch.tensor([prompt]), cache, 0, drafter.taps, "last")
    cache.lengths[0] = options.context
    rows = {n: torch.randint(0, target.info.vocab_size, (1, n)) for n in (1, 2, 4, 8)}
    arms: dict[str, Callable[[], Any]] = {
        f"verify_{n}_rows": (lambda x=x: target.forward(x, cache, 0, drafter.taps, "all")) for n, x in rows.items()
    }
    arms["plain_step"] = lambda: target.forward(rows[1], cache, 0, (), "all").logits.argmax(-1)
    arms["transformers_step"] = _transformers_step(plain_model, prompt)
    times = _alternate(arms, options.repeats)
    result: dict[str, Any] = {name: round(value, 2) for name, value in times.items()}

    drafts = _draft_times(target, drafter, (100, options.long_context), options.repeats)
    result["draft"] = round(drafts[100], 2)
    result |= {
        "ratio_plain_vs_transformers": round(times["transformers_step"] / times["plain_step"], 3),
        "ratio_verify_8_rows": round(times["verify_8_rows"] / times["plain_step"], 3),
        "ratio_draft": round(drafts[100] / times["plain_step"], 3),
        "ratio_draft_long_context": round(drafts[options.long_context] / drafts[100], 3),
        "draft_state_bytes": drafter.state_bytes(8000),
        "other_share": round(_other_share(target, drafter, prompt), 4),
        "made": provenance(["benchmarks/costs.py"]),
    }
    print(json.dumps(result, indent=1))


def _alternate(arms: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each arm, one call of each in turn."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    with torch.inference_mode():
        for turn in range(repeats + 2):
            for name, run in arms.items():
                begin = perf_counter()
                run()
                if turn >= 2:
                    times[name].append(1e3 * (perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def _transformers_step(model: Any, prompt: tuple[int, ...]) -> Callable[[], Any]:
    """One step as transformers' own ``generate`` takes it: a forward over its growing cache and an argmax."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        model(ids, past_key_values=cache, use_cache=True)

    def step() -> Any:
        output = model(ids[:, -1:], past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = output.logits[:, -1].argmax(-1)
        cache.crop(-1)
        return token

    return step


def _draft_times(target: Any, drafter: Any, lengths: tuple[int, ...], repeats: int) -> dict[int, float]:
    """Median draft milliseconds of running requests of different lengths, one round of each in turn."""
    engines = {}
    for length in lengths:
        ids = tuple(torch.randint(0, target.info.vocab_size, (length,)).tolist())
        engine = Engine(target, drafter, max_batch=1)
        engine.submit(Request(ids, repeats + 8, K=1 if drafter.max_drafts == 1 else None, stop_ids=frozenset()))
        engine.step()
        engines[length] = engine
    times: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(repeats):
        for length, engine in engines.items():
            row = engine.running[0] if engine.running else None
            if row is None:
                continue
            engine.step()
            times[length].append(1e3 * row.rounds[-1].seconds_draft)
    return {length: statistics.median(values[1:]) for length, values in times.items()}


def _other_share(target: Any, drafter: Any, prompt: tuple[int, ...]) -> float:
    """Share of decode time spent neither drafting nor verifying, over plain and drafted decoding together."""
    rounds: list[Round] = []
    for one in (NoDrafter(), drafter):
        engine = Engine(target, one, max_batch=1)
        number = engine.submit(Request(prompt, 48, stop_ids=frozenset()))
        engine.run()
        rounds += engine.result(number).rounds
    other = sum(r.seconds_other for r in rounds)
    return other / sum(r.seconds_draft + r.seconds_verify + r.seconds_other for r in rounds)


if __name__ == "__main__":
    main()
