"""The speculator of vLLM's V2 runner, the default on GPUs: one captured graph per size of batch, taps to drafts.

A DLite's round depends on nothing but the taps and tokens at the pivots, so its graph has no attention metadata, block
table or length in it. Imported by vLLM's own processes only. Tested with made-up batches on a CPU; never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

from dlite.drafters.base import Picker
from dlite.errors import ConfigError
from dlite.serve.drafting import Greedy, draft
from dlite.serve.vllm_plugin.target import open_for


class DLiteSpeculator(DraftModelSpeculator):  # type: ignore[misc]
    """Buffers of fixed address hold the inputs of a round; eagerly or by graph, ``_round`` fills ``draft_tokens``."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        if self.enable_adaptive_verification or self.draft_watermarker is not None:
            raise ConfigError(
                "adaptive verification or a watermark is asked for. A DLite in vLLM states no confidence and marks no drafts. "
                "Leave both out."
            )
        taps = len(self.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids)
        rows = self.max_num_reqs
        self.taps = torch.zeros(rows, taps, self.hidden_size, dtype=self.dtype, device=device)
        self.anchor, self.before, self.place = torch.zeros(3, rows, dtype=torch.long, device=device)
        self.columns = torch.arange(self.num_speculative_steps, dtype=torch.int32, device=device)
        if self.draft_logits is not None:  # one draft's over the target's vocabulary, -inf outside the draft vocabulary
            self.spread = torch.full_like(self.draft_logits[:, 0], -torch.inf)
        self.graphs: CudaGraphManager | None = None

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
        """Open the drafter of the folder, with the target's embedding and final norm."""
        return open_for(self.vllm_config, target_model, self.device)

    def set_attn(
        self,
        model_state: Any,
        kv_cache_config: Any,
        block_tables: Any,
        target_input_buffers: Any,
        target_attn_groups: Any,
    ) -> None:
        """No attention layer, so nothing to prepare for one."""
        self.attn_groups: list[Any] = []

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """Whole graphs wherever the target decodes by whole graphs; a size counts one token a request."""
        whole = cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
        mode = CUDAGraphMode.FULL_DECODE_ONLY if whole else CUDAGraphMode.NONE
        self.graphs = CudaGraphManager(self.vllm_config, self.device, mode, decode_query_len=1)

    def capture(self) -> None:
        """One graph for each size of batch. No row is a request's yet: none may write to a request's logits."""
        self.idx_mapping.fill_(-1)

        def create(desc: Any, warmup: bool) -> Callable[[CUDAGraphMode], None]:
            return lambda mode: self._round(desc.num_reqs)

        if self.graphs is not None:
            self.graphs.capture(create, "Capturing DLite CUDA graphs")

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Tensor,
        aux_hidden_states: list[Tensor] | None,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
        temperature: Tensor,
        seeds: Tensor,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> Tensor:
        """Drafts [B,K]. Ranks of a data-parallel group draft on their own: nothing in a round is shared between them."""
        rows = input_batch.num_reqs
        drafts: Tensor = self.draft_tokens[:rows]
        if num_speculative_tokens == 0 or rows == 0:
            return drafts
        if aux_hidden_states is None:
            raise RuntimeError("the target handed over no layers, though the drafter's config asks for them")
        self._copy_request_inputs(rows, input_batch.idx_mapping, temperature, seeds, dummy_run)
        self._stage(input_batch, aux_hidden_states, num_sampled, num_rejected, last_sampled, next_prefill_tokens)
        if is_profile or self.graphs is None:
            self._round(rows)
            return drafts
        desc = self.graphs.dispatch(rows, rows, uniform_token_count=1, num_active_loras=0)
        if desc.cg_mode == CUDAGraphMode.FULL:
            self.graphs.run_fullgraph(desc)
        else:
            self._round(rows)
        return drafts

    def _stage(
        self,
        batch: Any,
        aux: list[Tensor],
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Tensor,
    ) -> None:
        """A request's pivot is its last row that was not rejected; its anchor what was sampled, or the prompt's next token."""
        rows = batch.num_reqs
        pivot = (batch.query_start_loc[1 : rows + 1] - 1 - num_rejected[:rows]).clamp_min(0).long()
        for place, states in enumerate(aux):
            self.taps[:rows, place] = states[pivot]
        requests = batch.idx_mapping[:rows].long()
        prompt = next_prefill_tokens[0][requests].long()
        self.anchor[:rows] = torch.where(num_sampled[:rows] > 0, last_sampled.flatten()[requests], prompt)
        self.before[:rows] = batch.input_ids[pivot].long()
        self.place[:rows] = batch.positions[pivot] + 1

    @torch.inference_mode()
    def _round(self, rows: int) -> None:
        """Nothing but fixed buffers in and out: what a graph records."""
        chooser: Picker = Greedy()
        if self.draft_logits is not None:
            chooser = _Gumbel(self, rows)
        tokens = draft(
            self.model, self.taps[:rows], self.anchor[:rows], self.before[:rows], self.num_speculative_steps, chooser
        )
        self.draft_tokens[:rows] = tokens


class _Gumbel:
    """Draws as vLLM's V2 sampler does, and leaves the logits where its rejection reads them."""

    def __init__(self, speculator: DLiteSpeculator, rows: int) -> None:
        self.of, self.rows = speculator, rows

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """See ``Picker``. A draw is keyed by the position before the token: the anchor's for the first."""
        of, rows = self.of, self.rows
        full = logits.to(of.draft_logits.dtype)
        if ids is not None:
            full = of.spread[:rows].index_copy_(1, ids, full)
        return gumbel_sample(  # type: ignore[no-any-return]
            full,
            of.idx_mapping[:rows],
            of.temperature,
            of.seeds,
            of.place[:rows] + slot,
            apply_temperature=True,
            is_drafting=True,
            logits_cache=of.draft_logits,
            logits_cache_col=of.columns[slot],
            use_fp64=of.use_fp64_gumbel,
        )
