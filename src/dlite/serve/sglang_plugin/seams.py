"""What the plug-in relies on in SGLang 0.5.23: functions and their parameters."""

from __future__ import annotations

SEAMS = {
    "srt/dllm/mixin/scheduler.py:SchedulerDllmMixin.validate_dllm_request": "self req",
    "srt/layers/logprob_processor.py:compute_spec_logprobs": "batch logits_output predict accept_index chain_stride",
    "srt/managers/overlap_utils.py:FutureMap.__init__": (
        "self device spec_algo req_to_token_pool needs_cpu_seq_lens needs_confidence_relay"
    ),
    "srt/managers/overlap_utils.py:RelayPayload.from_draft_input": "cls draft_input",
    "srt/managers/tp_worker.py:TpModelWorker.forward_batch_generation": (
        "self batch forward_batch pp_proxy_tensors is_verify skip_attn_backend_init capture_hidden_mode return_kv_loc_plan"
    ),
    "srt/plugins/hook_registry.py:HookRegistry.register": "cls target hook hook_type source",
    "srt/speculative/base_spec_worker.py:BaseSpecWorker.alloc_memory_pool": (
        "self memory_pool_config req_to_token_pool token_to_kv_pool_allocator"
    ),
    "srt/speculative/dflash_info.py:DFlashVerifyInput.prepare_for_verify": (
        "self batch target_worker defer_metadata_init"
    ),
    "srt/speculative/eagle_utils.py:eagle_prepare_for_decode": "batch",
    "srt/speculative/spec_info.py:SpecInput.__init__": "self spec_input_type",
    "srt/speculative/spec_info.py:SpeculativeAlgorithm.create_future_map": (
        "self device req_to_token_pool needs_cpu_seq_lens needs_confidence_relay"
    ),
    "srt/speculative/spec_info.py:SpeculativeAlgorithm.register": (
        "cls name supports_overlap validate_server_args spec_class"
    ),
    "srt/speculative/spec_registry.py:CustomSpecAlgo.__init__": (
        "self name factory supports_overlap validate_server_args"
    ),
    "srt/speculative/spec_registry.py:CustomSpecAlgo.handle_server_args": "self server_args",
    "srt/speculative/spec_utils.py:GrammarTree.from_linear_chain": "cls verify_ids_2d",
    "srt/speculative/spec_utils.py:build_grammar_vocab_mask": "reqs tree sampling_info device barrier",
    "srt/speculative/spec_utils.py:record_stream_for_v2_verify": "batch verify_input fwd_stream",
}
