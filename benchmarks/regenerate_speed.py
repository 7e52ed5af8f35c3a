"""Tokens per second of ``dlite regenerate`` beside transformers' own ``generate``: same prompts, batch and limit.

    python benchmarks/regenerate_speed.py PROMPTS.jsonl --prompts 64 --batch 64 --max-new-tokens 256 --rounds 1

Both answer every prompt until the target's own stop token or the limit, in batches of the same size; the two alternate.
Only tokens of the answers count, not the padding behind them, and the greedy ids are compared.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from dlite.data.conversations import read_conversations
from dlite.data.dialogue import opening_ids
from dlite.data.prompts import Prompt, read_prompts
from dlite.data.regenerate import RegenerateSettings, regenerate
from dlite.drafters.none import NoDrafter
from dlite.provenance import provenance
from dlite.target.load import converted, load_target, packaged_gguf

Answers = dict[str, list[int]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    target = load_target("smollm2-135m")
    model = AutoModelForCausalLM.from_pretrained(
        str(converted(packaged_gguf("smollm2-135m"))), dtype=torch.float32
    ).eval()
    prompts = list(islice(read_prompts(options.file), options.prompts))
    rates: dict[str, list[float]] = {"dlite": [], "transformers": []}
    answers: dict[str, Answers] = {}
    for _ in range(options.rounds):
        for name, run in (("dlite", _ours), ("transformers", _theirs)):
            begin = perf_counter()
            answers[name] = run(target if name == "dlite" else (model, target), prompts, options)
            rates[name].append(sum(map(len, answers[name].values())) / (perf_counter() - begin))
    middle = {name: round(median(values), 1) for name, values in rates.items()}
    record = {
        "tokens_per_second": middle,
        "ratio": round(middle["dlite"] / middle["transformers"], 2),
        "answers_with_equal_ids": sum(answers["dlite"][p.id] == answers["transformers"][p.id] for p in prompts),
        "answer_tokens": sum(map(len, answers["dlite"].values())),
        "settings": vars(options) | {"file": Path(options.file).name},
        "made": provenance(["benchmarks/regenerate_speed.py"]),
    }
    print(json.dumps(record, indent=1))


def _ours(target: Any, prompts: list[Prompt], options: argparse.Namespace) -> Answers:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answers.jsonl"
        regenerate(target, NoDrafter(), prompts, out, RegenerateSettings(options.max_new_tokens, options.batch))
        found = list(read_conversations(out, all_answers=True))
    return {c.id: [t for t, wrote in zip(c.ids, c.wrote, strict=True) if wrote] for c in found}


def _theirs(model_and_target: Any, prompts: list[Prompt], options: argparse.Namespace) -> Answers:
    model, target = model_and_target
    answers: Answers = {}
    for start in range(0, len(prompts), options.batch):
        some = prompts[start : start + options.batch]
        ids = [opening_ids(target.tokenizer, p) for p in some]
        longest = max(map(len, ids))
        padded = torch.tensor([[0] * (longest - len(p)) + p for p in ids])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in ids])
        stops = sorted(target.info.stop_ids)
        with torch.inference_mode():
            out = model.generate(
                padded, attention_mask=mask, max_new_tokens=options.max_new_tokens, do_sample=False, pad_token_id=0,
                eos_token_id=stops,
            )  # fmt: skip
        for prompt, row in zip(some, out[:, longest:].tolist(), strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in target.info.stop_ids), len(row))
            answers[prompt.id] = row[:end]
    return answers


if __name__ == "__main__":
    main()
