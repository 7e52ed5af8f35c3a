"""The proposer of vLLM's V1 runner, the only one on CPUs. What runs around it (taps, padding, rejection) is the runner's.

Imported by vLLM's own processes only: it subclasses vLLM's proposer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.v1.spec_decode.dflash import DFlashProposer

from dlite.serve.drafting import Greedy, Sampled, draft
from dlite.serve.vllm_plugin.cpu import mend_sampling
from dlite.serve.vllm_plugin.target import open_for

GREEDY_BELOW = 1e-5  # vLLM's sampler takes the likeliest token below this temperature


class DLiteProposer(DFlashProposer):  # type: ignore[misc]
    """Drafts from the taps at each request's last row; no attention layer, no KV, nothing kept between rounds."""

    def load_model(self, target_model: nn.Module) -> None:
        """Open the drafter of the folder, with the target's embedding and final norm."""
        self.model = self.network = open_for(self.vllm_config, target_model, self.device)
        self._draft_attn_layer_names: set[str] = set()
        if self.device.type == "cpu":
            mend_sampling()

    def initialize_attn_backend(self, kv_cache_config: Any, kernel_block_sizes: Any = None) -> None:
        """No attention of its own: the runner hands over the metadata of the target's first group."""
        self.draft_attn_groups: list[Any] = []
        self.kv_cache_gid = 0
        self.block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size

    def initialize_cudagraph_keys(self, cudagraph_mode: Any) -> None:
        """V1 drafts eagerly."""

    @torch.inference_mode()
    def dummy_run(
        self,
        num_tokens: int,
        use_cudagraphs: bool = True,
        is_graph_capturing: bool = False,
        slot_mappings: Any = None,
    ) -> None:
        """A round of the largest batch that so many tokens can be, for the memory profile."""
        rows = min(num_tokens, self.max_batch_size)
        config = self.network.config
        taps = torch.zeros(rows, len(config.taps), config.backbone.hidden_size, dtype=self.dtype, device=self.device)
        anchor = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._choose(taps, anchor, anchor, self.num_speculative_tokens, torch.ones(rows, device=self.device), {})

    @torch.inference_mode()
    def propose(
        self,
        num_speculative_tokens: int,
        target_token_ids: Tensor,
        target_positions: Tensor,
        target_hidden_states: Tensor,
        next_token_ids: Tensor,
        token_indices_to_sample: Tensor | None,
        common_attn_metadata: Any,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: Tensor | None = None,
        slot_mappings: Any = None,
    ) -> Tensor:
        """Drafts [B,K]. target_hidden_states [T,n*D]: the taps of all rows side by side; next_token_ids [B]: the anchors."""
        self._last_draft_probs: Tensor | None = None
        last = token_indices_to_sample
        if last is None:
            last = common_attn_metadata.query_start_loc[1 : len(next_token_ids) + 1] - 1
        pivot = last.long()
        taps = target_hidden_states[pivot].view(len(pivot), len(self.network.taps), -1)
        temperature = None if sampling_metadata.all_greedy else sampling_metadata.temperature
        return self._choose(
            taps,
            next_token_ids.long(),
            target_token_ids[pivot].long(),
            num_speculative_tokens,
            temperature,
            sampling_metadata.generators,
        )

    def _choose(
        self,
        taps: Tensor,
        anchor: Tensor,
        before: Tensor,
        K: int,
        temperature: Tensor | None,
        generators: dict[int, torch.Generator],
    ) -> Tensor:
        """Likeliest tokens, or with ``draft_sample_method: probabilistic`` drawn ones, whose q the runner takes."""
        if temperature is None or K == 0 or not self._enable_probabilistic_draft_probs:
            return draft(self.network, taps, anchor, before, K, Greedy())
        coins = torch.rand(len(anchor), K, device=anchor.device)
        for row, generator in generators.items():
            coins[row] = torch.rand(K, generator=generator, device=anchor.device)
        chooser = Sampled(
            temperature.masked_fill(temperature < GREEDY_BELOW, 0.0), coins, self.network.config.vocab_size
        )
        tokens = draft(self.network, taps, anchor, before, K, chooser)
        self._last_draft_probs = chooser.probs
        return tokens
