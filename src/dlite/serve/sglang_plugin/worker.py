"""The worker of DLITE: the target's forward passes, and drafts right behind each of them.

Drafting at once, and not at the start of the next round, needs no hidden state to be kept: between rounds there are K
token ids a request slot. It works alike with the overlap scheduler, which starts a round before the last one's tokens
have reached the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.runtime_context import get_device, get_model, get_spec
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType
from sglang.srt.speculative.spec_utils import GrammarTree, build_grammar_vocab_mask, record_stream_for_v2_verify
from torch import Tensor

from dlite.serve.drafting import Lent, open_dlite
from dlite.serve.sglang_plugin.law import Law, law_of
from dlite.serve.sglang_plugin.rounds import Rounds, committed
from dlite.serve.sglang_plugin.taps import Taps, check_target, lend_embedding, lend_norm, pivots
from dlite.target.hf import info_of


class Newest(SpecInput):  # type: ignore[misc]
    """What SGLang carries to the next round: the newest token of each request, and how far it has come.

    With the overlap scheduler the tokens travel through its own buffer, at ``future_indices``.
    """

    topk_p = topk_index = hidden_states = None
    num_tokens_per_req = num_tokens_for_logprob_per_req = 1

    def __init__(self, bonus_tokens: Tensor, new_seq_lens: Tensor) -> None:
        super().__init__(SpecInputType.DFLASH_DRAFT)
        self.bonus_tokens, self.new_seq_lens = bonus_tokens, new_seq_lens
        self.future_indices: Tensor | None = None

    def filter_batch(self, new_indices: Tensor, new_indices_cpu: Any = None) -> None:
        """Keep some requests."""
        if self.future_indices is not None:
            self.future_indices = self.future_indices[new_indices]
            return
        self.bonus_tokens, self.new_seq_lens = self.bonus_tokens[new_indices], self.new_seq_lens[new_indices]

    def merge_batch(self, other: Newest) -> None:
        """Add the requests of another batch."""
        if self.future_indices is not None and other.future_indices is not None:
            self.future_indices = torch.cat([self.future_indices, other.future_indices])
            return
        self.bonus_tokens = torch.cat([self.bonus_tokens, other.bonus_tokens])
        self.new_seq_lens = torch.cat([self.new_seq_lens, other.new_seq_lens])


class DLiteWorker(BaseSpecWorker):  # type: ignore[misc]
    """One model worker. Its drafter is whole and has no key-values, so that SGLang sees no draft worker."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        super().__init__()
        self._target_worker, self.device = target_worker, get_device().device
        self.rows = get_spec().speculative_num_draft_tokens
        self.speculative_num_draft_tokens, self.speculative_num_steps, self.topk = self.rows, self.rows - 1, 1
        runner = target_worker.model_runner
        check_target(runner.model)
        info = info_of(runner.model_config.hf_text_config, get_model().model_path)
        lent = Lent(info, lend_embedding(runner.model, info.hidden_size), lend_norm(runner.model, info.hidden_size))
        folder = get_spec().speculative_draft_model_path
        self.network = open_dlite(folder, lent, self.rows - 1, torch.device(self.device), runner.dtype)
        self.taps = Taps(runner.model, self.network.taps, info.num_layers)  # before attention and graphs are set up

    @property
    def draft_worker(self) -> None:
        """None: there is no second model of SGLang's own."""

    def alloc_memory_pool(self, **pools: Any) -> None:
        """The engine's pools are there: make room for the drafts of each slot."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self.target_worker.get_memory_pool()
        slots = self.req_to_token_pool.req_to_token.shape[0]
        self.rounds = Rounds(
            self.network, self.rows - 1, slots, torch.device(self.device), self.target_worker.random_seed
        )

    def forward_batch_generation(
        self,
        batch: Any,
        on_publish: Callable[[Tensor], None] | None = None,
        grammar_barrier: Any = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """One step of the scheduler: prompts, or a round of requests that are being answered."""
        law = law_of([one.sampling_params for one in batch.reqs], batch.sampling_info)
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch:
            return self._prompts(batch, law, on_publish)
        return self._round(batch, law, on_publish)

    def _prompts(self, batch: Any, law: Law | None, on_publish: Callable[[Tensor], None] | None) -> Any:
        """The target reads what the prefix cache does not hold of each prompt, at least its last token: the pivot."""
        before = batch.input_ids[pivots(batch.extend_lens, batch.input_ids.device)]
        output = self.target_worker.forward_batch_generation(batch, capture_hidden_mode=CaptureHiddenMode.LAST)
        anchor, output.new_seq_lens = output.next_token_ids, batch.seq_lens
        if on_publish is not None:
            on_publish(batch.seq_lens)
        taps = self.taps.read(output.logits_output.hidden_states, len(anchor))
        self.rounds.draft(taps, anchor, before, batch.req_pool_indices, law)
        output.logits_output.hidden_states = None
        output.next_draft_input = Newest(anchor, batch.seq_lens)
        return output

    def _round(self, batch: Any, law: Law | None, on_publish: Callable[[Tensor], None] | None) -> Any:
        """Verify the drafts made last time, then draft from the last row that stands."""
        record_stream_for_v2_verify(batch, None, torch.get_device_module(self.device).current_stream())
        slots, lengths = batch.req_pool_indices, batch.seq_lens
        candidates = self.rounds.candidates(batch.spec_info.bonus_tokens, slots)
        tree = GrammarTree.from_linear_chain(candidates) if batch.has_grammar else None
        output = self._verify(batch, candidates)
        logits = self._adjusted(batch, output.logits_output.next_token_logits, tree)
        verdict = self.rounds.verify(logits, candidates, slots, law)
        tokens = committed(candidates, verdict)
        new_lengths = lengths + (verdict.num_accepted + 1).to(lengths.dtype)
        if batch.return_logprob:
            compute_spec_logprobs(batch, output.logits_output, tokens.reshape(-1), chain_stride=self.rows)
        if on_publish is not None:
            on_publish(new_lengths)
        self._draft_behind(output.logits_output, candidates, verdict.num_accepted, verdict.next_token, slots, law)
        return GenerationBatchResult(
            logits_output=output.logits_output,
            next_token_ids=tokens.reshape(-1),
            accept_lens=(verdict.num_accepted + 1).to(torch.int32),
            can_run_cuda_graph=output.can_run_cuda_graph,
            next_draft_input=Newest(verdict.next_token, new_lengths),
            speculative_num_draft_tokens=self.rows,
            new_seq_lens=new_lengths,
        )

    def _verify(self, batch: Any, candidates: Tensor) -> Any:
        """The target over the candidates [B,K+1], in the places that the scheduler has reserved for them."""
        slots, places = batch.req_pool_indices, torch.arange(self.rows, device=candidates.device)
        positions = batch.seq_lens[:, None] + places
        batch.out_cache_loc = self.req_to_token_pool.req_to_token[slots[:, None], positions].reshape(-1).long()
        verification = DFlashVerifyInput(
            draft_token=candidates.reshape(-1), positions=positions.reshape(-1), draft_token_num=self.rows
        )
        known, total = batch.seq_lens_cpu, batch.seq_lens_sum
        if known is not None:  # the attention's own bound: what stands, and the rows of this pass
            batch.seq_lens_cpu = known + self.rows
            batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        forward, _ = verification.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = known, total
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward, is_verify=True, skip_attn_backend_init=True
        )

    def _adjusted(self, batch: Any, logits: Tensor, tree: Any) -> Tensor:
        """What requests ask for besides a law, applied in place to logits [B*(K+1),V]; returned as [B,K+1,V]."""
        shaped = logits.view(-1, self.rows, logits.shape[-1])
        if batch.sampling_info.logit_bias is not None:
            shaped += batch.sampling_info.logit_bias[:, None].to(shaped.dtype)
        if tree is not None:
            mask = build_grammar_vocab_mask(
                reqs=batch.reqs, tree=tree, sampling_info=batch.sampling_info, device=logits.device, barrier=None
            )
            if mask is not None:
                mask.apply(logits)
        return shaped

    def _draft_behind(
        self, output: Any, candidates: Tensor, accepted: Tensor, anchor: Tensor, slots: Tensor, law: Law | None
    ) -> None:
        """Row ``accepted`` of each request is its new pivot: the last candidate that stands."""
        every = torch.arange(len(candidates), device=candidates.device)
        pivot = every * self.rows + accepted
        taps = self.taps.read(output.hidden_states, candidates.numel(), pivot)
        self.rounds.draft(taps, anchor, candidates.reshape(-1)[pivot], slots, law)
        output.hidden_states = None  # else the scheduler would copy it to the CPU
