"""An engine to ask, and an ear at its drafter."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dlite
from dlite.target.load import resolve

K, TOKENS = 7, 32
MODEL = "smollm2-135m"
DRAFTER = Path(dlite.__file__).parent / "shipped" / "smollm2-135m-dlite"
QUESTIONS = (
    "What is the capital of France?",
    "List the numbers from 1 to 20, separated by commas.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "Write a Python function that reverses a string.",
    "What is 12 times 7?",
    "Name three colours.",
)
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 16, "max_num_batched_tokens": 64,
    "block_size": 32, "num_gpu_blocks_override": 14, "seed": 0, "disable_log_stats": False,
}  # fmt: skip
SPECULATIVE = {
    "method": "dflash", "model": str(DRAFTER), "num_speculative_tokens": K, "draft_sample_method": "probabilistic",
    "disable_eagle_block_drop": True,
}  # fmt: skip


class Asked:
    """vLLM in this process."""

    def __init__(self, **settings: Any) -> None:
        from vllm import LLM

        self.llm: Any = LLM(resolve(MODEL), **SETTINGS, **settings)
        self.cached: list[int] = []

    def ask(self, prompts: Sequence[Sequence[int]], *, n: int = 1, **sampling: Any) -> list[list[int]]:
        """The tokens of every answer, in order; how much of each prompt was cached stays in ``cached``."""
        from vllm import SamplingParams

        settings = SamplingParams(**{"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True, "n": n} | sampling)
        done = self.llm.generate([{"prompt_token_ids": list(one)} for one in prompts], settings, use_tqdm=False)
        self.cached = [one.num_cached_tokens for one in done]
        return [list(answer.token_ids) for one in done for answer in one.outputs]

    def count(self, name: str) -> int:
        """One of vLLM's counters so far."""
        return sum(int(one.value) for one in self.llm.get_metrics() if one.name == f"vllm:{name}")

    @property
    def runner(self) -> Any:
        """The V1 runner in the worker."""
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner

    def close(self) -> None:
        """Everything handed back, so that another can start in this process."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        cleanup_dist_env_and_memory()
        gc.collect()


class Ear:
    """Hears every round of a proposer: drafts, taps and anchors by prompt and place of the anchor."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.inner = runner, runner.drafter.propose
        self.drafts: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self.taps: dict[tuple[tuple[int, ...], int], Tensor] = {}
        self.anchors: dict[tuple[tuple[int, ...], int], int] = {}
        runner.drafter.propose = self.propose

    def propose(self, **given: Any) -> Tensor:
        """The proposer's own answer, noted."""
        drafts: Tensor = self.inner(**given)
        last = given["token_indices_to_sample"]
        if last is None:
            last = given["common_attn_metadata"].query_start_loc[1 : len(drafts) + 1] - 1
        places = (given["target_positions"][last.long()] + 1).tolist()
        for row, request in enumerate(self.runner.input_batch.req_ids):
            key = (tuple(self.runner.requests[request].prompt_token_ids), places[row])
            if key[1] >= len(key[0]):  # inside the prompt the anchor is its next token, and nothing is verified
                self.drafts[key] = drafts[row].tolist()
                self.taps[key] = given["target_hidden_states"][last[row].long()].clone()
                self.anchors[key] = int(given["next_token_ids"][row])
        return drafts

    def clear(self) -> None:
        """Forget what was heard."""
        self.drafts, self.taps, self.anchors = {}, {}, {}


def mean_accepted(
    drafts: dict[tuple[tuple[int, ...], int], list[int]], texts: dict[tuple[int, ...], list[int]]
) -> float:
    """Accepted drafts a round, over the rounds that end inside the known greedy texts: prompt -> answer.

    Behind that, engines differ in how many drafts they still ask for.
    """
    kept = []
    for (prompt, anchor), drafted in drafts.items():
        text = [*prompt, *texts[prompt]][anchor + 1 :]
        if len(text) > K:
            wrong = [i for i, draft in enumerate(drafted[:K]) if draft != text[i]]
            kept.append(wrong[0] if wrong else K)
    return sum(kept) / len(kept)


def prompts_of(tokenizer: Any) -> list[tuple[int, ...]]:
    """The questions as the target reads them."""
    chats = [[{"role": "user", "content": one}] for one in QUESTIONS]
    return [tuple(tokenizer.apply_chat_template(one, add_generation_prompt=True, return_dict=False)) for one in chats]


def uniform_bins(laws: Tensor, tokens: Sequence[int], bins: int, seed: int) -> Tensor:
    """How many samples fall in each of ``bins`` equal parts of their own law [N,V], sorted, with a coin inside a token's part.

    Tokens drawn from their laws fall in every part alike, whatever the laws are.
    """
    order = laws.sort(descending=True)
    place = (order.indices == torch.tensor(tokens)[:, None]).int().argmax(1)
    ends = order.values.double().cumsum(1).gather(1, place[:, None])[:, 0]
    mass = order.values.double().gather(1, place[:, None])[:, 0]
    coins = torch.rand(len(tokens), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((ends - coins * mass).clamp(0, 1 - 1e-9) * bins).long().bincount(minlength=bins)
