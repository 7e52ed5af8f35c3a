"""Tokens per second of ``dlite regenerate`` beside transformers' own ``generate``, same prompts, batch and lengths.

    python benchmarks/regenerate_speed.py PROMPTS.jsonl --batch 64 --new-tokens 64 --rounds 2

The two alternate; both write exactly ``--new-tokens`` tokens a prompt, and the greedy ids are compared.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dlite.data.prompts import read_prompts
from dlite.data.regenerate import opening_ids
from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.provenance import provenance
from dlite.target.load import converted, load_target, packaged_gguf


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    target = load_target("smollm2-135m")
    model = AutoModelForCausalLM.from_pretrained(
        str(converted(packaged_gguf("smollm2-135m"))), dtype=torch.float32
    ).eval()
    model.generation_config.eos_token_id = None  # both write the full length
    prompts = [opening_ids(target, p) for p in islice(read_prompts(options.prompts), options.batch)]
    times: dict[str, list[float]] = {"dlite": [], "transformers": []}
    for _ in range(options.rounds):
        for name, run in (
            ("dlite", lambda: _ours(target, prompts, options.new_tokens)),
            ("transformers", lambda: _theirs(model, prompts, options.new_tokens)),
        ):
            begin = perf_counter()
            ids = run()
            times[name].append(perf_counter() - begin)
            if name == "dlite":
                ours = ids
    tokens = options.batch * options.new_tokens
    rates = {name: round(tokens / min(values), 1) for name, values in times.items()}
    print(
        json.dumps(
            {
                "tokens_per_second": rates,
                "ratio": round(rates["dlite"] / rates["transformers"], 2),
                "rows_with_equal_ids": sum(a == b for a, b in zip(ours, ids, strict=True)),
                "batch": options.batch,
                "new_tokens": options.new_tokens,
                "made": provenance(["benchmarks/regenerate_speed.py"]),
            },
            indent=1,
        )
    )


def _ours(target: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    engine = Engine(target, NoDrafter(), max_batch=len(prompts))
    numbers = [engine.submit(Request(tuple(ids), new, stop_ids=frozenset())) for ids in prompts]
    engine.run()
    return [list(engine.result(n).token_ids) for n in numbers]


def _theirs(model: Any, prompts: list[list[int]], new: int) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)
    return out[:, longest:].tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
