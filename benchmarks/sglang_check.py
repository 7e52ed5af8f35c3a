"""Does SGLang 0.5.23 answer the same with dlite's drafter as without, here on a CPU? docs/serving.md says what it needs.

    python benchmarks/sglang_check.py --target FOLDER --drafter FOLDER

Five runs, one engine each: our own engine, SGLang alone, SGLang with the drafter (overlap scheduler off, on) and with pages of
32 tokens. Each answers the same calls: a prompt, the same again, two follow-ups in a batch, a greedy one beside sampled ones,
an answer in a JSON schema, log probabilities, a request that must be refused. Greedy answers must be equal token for token, and
as many tokens must come from the prefix cache as without a drafter. Prints a line a run, and ends with status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ARMS = ("ours", "plain", "sync", "overlap", "paged")
TOOLS = " ".join(f"tool_{i}(arg_{i}: int) returns value {i * i};" for i in range(10))
SYSTEM = {"role": "system", "content": f"You are a careful assistant. Tools: {TOOLS}"}
SCHEMA = json.dumps(
    {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
)
KIND = dict[str, Any]


def main() -> None:
    """Run every arm, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder or hub id, in Hugging Face's layout")
    parser.add_argument("--drafter", required=True, help="folder of a DLite for it")
    parser.add_argument("--tokens", type=int, default=48, help="length of every answer")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)  # one of them, in a process of its own
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        run = ours if options.arm == "ours" else served
        Path(options.out).write_text(json.dumps(run(options)))
        return
    with TemporaryDirectory() as folder:
        results = {arm: _apart(options, arm, Path(folder) / f"{arm}.json") for arm in options.arms}
    faults = compare(results)
    print("\n".join(faults) or "all checks passed")
    sys.exit(1 if faults else 0)


def _apart(options: argparse.Namespace, arm: str, out: Path) -> list[KIND]:
    began = time.monotonic()
    command = [sys.executable, __file__, "--target", options.target, "--drafter", options.drafter]
    command += ["--tokens", str(options.tokens), "--arm", arm, "--out", str(out)]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode or not out.exists():
        sys.exit(f"the run {arm!r} failed with status {done.returncode}. What it said stands above.")
    result: list[KIND] = json.loads(out.read_text())
    answers = [one for one in result if one["rounds"]]
    rounds = sum(one["rounds"] for one in answers)
    said = sum(len(one["ids"]) - 1 for one in answers)  # the first token of an answer comes from the prompt's pass
    tau = f"tau {said / rounds:.3f} over {rounds} rounds" if rounds else "no drafts"
    cached = [one["cached"] for one in result if one["cached"] is not None]
    print(f"{arm}: {len(result)} calls, {tau}, cached {cached}, {time.monotonic() - began:.0f} s", flush=True)
    return result


def calls(options: argparse.Namespace) -> list[KIND]:
    """Batches that are asked one after the other: name, prompts as ids, sampling parameters of SGLang."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.target)

    def ids(*messages: KIND) -> list[int]:
        shape = {"tokenize": True, "add_generation_prompt": True, "return_dict": False}
        return list(tokenizer.apply_chat_template([SYSTEM, *messages], **shape))

    def user(text: str) -> KIND:
        return {"role": "user", "content": text}

    greedy = {"temperature": 0, "max_new_tokens": options.tokens, "ignore_eos": True}
    warm = {**greedy, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.05}
    first, colours = ids(user("What is the capital of France?")), ids(user("List three colours."))
    answer = {"role": "assistant", "content": "Paris."}
    return [
        {"name": "cold", "ids": [first], "sampling": [greedy]},
        {"name": "again", "ids": [first], "sampling": [greedy]},
        {"name": "follow-ups", "ids": [ids(user("What is the capital of France?"), answer, user("And of Spain?")), colours],
         "sampling": [greedy, greedy]},
        {"name": "mixed", "ids": [colours, first, first], "sampling": [greedy, warm, {**warm, "top_k": -1}]},
        {"name": "biased", "ids": [colours], "sampling": [{**greedy, "logit_bias": {str(first[0]): -5.0}}]},
        {"name": "schema", "ids": [first], "sampling": [{**greedy, "ignore_eos": False, "json_schema": SCHEMA}]},
        {"name": "logprobs", "ids": [colours], "sampling": [greedy], "logprobs": True},
        {"name": "penalty", "ids": [first], "sampling": [{**greedy, "repetition_penalty": 1.2}]},
    ]  # fmt: skip


def served(options: argparse.Namespace) -> list[KIND]:
    """The calls answered by SGLang in this process and its children."""
    from sglang_cpu import install

    install()
    import sglang

    arguments: KIND = {
        "model_path": options.target, "device": "cpu", "dtype": "float32", "attention_backend": "torch_native",
        "sampling_backend": "pytorch", "grammar_backend": "xgrammar", "disable_cuda_graph": True, "max_total_tokens": 8192,
        "context_length": 2048, "max_running_requests": 4, "mem_fraction_static": 0.6, "skip_server_warmup": True,
        "log_level": "warning", "page_size": 32 if options.arm == "paged" else 1,
        "disable_overlap_schedule": options.arm in ("plain", "sync"),
    }  # fmt: skip
    if options.arm != "plain":
        arguments |= {"speculative_algorithm": "DLITE", "speculative_draft_model_path": options.drafter}
    engine = sglang.Engine(**arguments)
    try:
        return [one for call in calls(options) for one in _ask(engine, call)]
    finally:
        engine.shutdown()


def _ask(engine: Any, call: KIND) -> list[KIND]:
    logprobs = call.get("logprobs", False)
    try:
        outputs = engine.generate(input_ids=call["ids"], sampling_params=call["sampling"], return_logprob=logprobs)
    except ValueError as error:
        return [{"name": call["name"], "ids": [], "rounds": 0, "cached": None, "refused": str(error)}]
    records = []
    for output, sampling in zip(outputs, call["sampling"], strict=True):
        meta = output["meta_info"]
        record = {"name": call["name"], "ids": output["output_ids"], "rounds": meta.get("spec_verify_ct", 0)}
        record |= {"cached": meta["cached_tokens"], "greedy": sampling["temperature"] == 0}
        if meta["finish_reason"].get("type") == "abort":
            record |= {"refused": meta["finish_reason"]["message"], "cached": None}
        if logprobs:
            record["logprobs"] = [value for value, *_ in meta["output_token_logprobs"]]
        records.append(record)
    return records


def ours(options: argparse.Namespace) -> list[KIND]:
    """The greedy calls answered by our own engine: its drafts beside SGLang's."""
    from dlite.api import load_drafter, load_target
    from dlite.engine.decode import Engine
    from dlite.engine.request import Request

    target = load_target(options.target)
    drafter, records = load_drafter(options.drafter, target), []
    for call in calls(options):
        if call["name"] not in ("cold", "again", "follow-ups", "logprobs"):
            continue
        engine = Engine(target, drafter, max_batch=len(call["ids"]))
        asked = [engine.submit(Request(tuple(ids), options.tokens, stop_ids=frozenset())) for ids in call["ids"]]
        engine.run()
        answers = [engine.result(one) for one in asked]
        records += [
            {
                "name": call["name"],
                "ids": list(one.token_ids),
                "rounds": len(one.rounds),
                "cached": None,
                "greedy": True,
            }
            for one in answers
        ]
    return records


def compare(results: dict[str, list[KIND]]) -> list[str]:
    """What is not as it should be, in words: against SGLang alone, and our own engine's greedy answers too."""
    faults: list[str] = []
    if "plain" not in results:
        return ["there is no run 'plain' to compare with"]
    for arm, found in results.items():
        faults += [] if arm == "plain" else _against(arm, found, results["plain"])
    return faults


def _against(arm: str, found: list[KIND], plain: list[KIND]) -> list[str]:
    names = {one["name"] for one in found}
    faults = []
    for mine, theirs in zip(found, [one for one in plain if one["name"] in names], strict=True):
        where = f"{arm}: {mine['name']}"
        if mine["name"] == "penalty":
            faults += [] if "repetition_penalty is 1.2" in mine.get("refused", "") else [f"{where} was not refused"]
            continue
        if mine["greedy"] and mine["ids"] != theirs["ids"]:
            faults.append(f"{where}: {mine['ids']} differs from {theirs['ids']}")
        if arm in ("sync", "overlap") and mine["cached"] != theirs["cached"]:
            faults.append(f"{where}: {mine['cached']} cached tokens, without a drafter {theirs['cached']}")
        if "logprobs" in mine:
            gap = max(abs(a - b) for a, b in zip(mine["logprobs"], theirs["logprobs"], strict=True))
            faults += [f"{where}: log probabilities differ by {gap:.2e}"] if gap > 1e-3 else []
    return faults


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a child of SGLang's engine
    from sglang_cpu import install

    install()
