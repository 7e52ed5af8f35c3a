"""What the plug-in relies on in vLLM, looked up in its source files before anything is changed, and how it hooks in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Equal in 0.32.0 and 0.33.0. Where -> its parameters.
HOOKS = {
    "model_executor/models/config.py:VerifyAndUpdateConfig.verify_and_update_model_config": "model_config",
    "model_executor/models/registry.py:_ModelRegistry.register_model": "self model_arch model_cls",
    "transformers_utils/configs/eagle.py:EAGLEConfig.__init__": "self model truncated_vocab_size method",
    "v1/sample/rejection_sampler.py:expand_batch_to_tokens": "x cu_num_tokens num_tokens replace_from replace_to",
    "v1/spec_decode/dflash.py:DFlashProposer.__init__": "self vllm_config device runner",
    "v1/spec_decode/dflash.py:DFlashProposer.dummy_run": "self num_tokens use_cudagraphs is_graph_capturing slot_mappings",
    "v1/spec_decode/llm_base_proposer.py:SpecDecodeBaseProposer.load_model": "self target_model",
    "v1/spec_decode/llm_base_proposer.py:SpecDecodeBaseProposer.initialize_attn_backend": (
        "self kv_cache_config kernel_block_sizes"
    ),
    "v1/spec_decode/llm_base_proposer.py:SpecDecodeBaseProposer.initialize_cudagraph_keys": "self cudagraph_mode",
    "v1/spec_decode/llm_base_proposer.py:SpecDecodeBaseProposer.take_last_draft_probs": "self",
    "v1/spec_decode/llm_base_proposer.py:SpecDecodeBaseProposer.propose": (
        "self num_speculative_tokens target_token_ids target_positions target_hidden_states next_token_ids "
        "token_indices_to_sample common_attn_metadata sampling_metadata mm_embed_inputs num_rejected_tokens_gpu slot_mappings"
    ),
    "v1/worker/gpu/spec_decode/__init__.py:init_speculator": "vllm_config device req_states",
    "v1/worker/gpu/spec_decode/speculator.py:DraftModelSpeculator.__init__": "self vllm_config device",
    "v1/worker/gpu/spec_decode/speculator.py:DraftModelSpeculator.load_draft_model": (
        "self target_model target_attn_layer_names"
    ),
    "v1/worker/gpu/spec_decode/speculator.py:DraftModelSpeculator.set_attn": (
        "self model_state kv_cache_config block_tables target_input_buffers target_attn_groups"
    ),
    "v1/worker/gpu/spec_decode/speculator.py:DraftModelSpeculator._copy_request_inputs": (
        "self num_reqs idx_mapping temperature seeds dummy_run"
    ),
    "v1/worker/gpu/spec_decode/speculator.py:BaseSpeculator.propose": (
        "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states num_sampled num_rejected "
        "last_sampled next_prefill_tokens temperature seeds dp_sync_state dummy_run skip_attn_for_dummy_run mm_inputs "
        "is_profile num_speculative_tokens"
    ),
    "v1/worker/gpu/cudagraph_utils.py:CudaGraphManager.__init__": (
        "self vllm_config device cudagraph_mode decode_query_len lora_capture_cases varlen_decode ubatch_runner"
    ),
    "v1/worker/gpu/cudagraph_utils.py:CudaGraphManager.capture": "self create_forward_fn progress_bar_desc",
    "v1/worker/gpu/cudagraph_utils.py:CudaGraphManager.dispatch": (
        "self num_reqs num_tokens uniform_token_count num_active_loras max_query_len num_ubatches"
    ),
    "v1/worker/gpu/cudagraph_utils.py:CudaGraphManager.run_fullgraph": "self desc",
    "v1/worker/gpu/cudagraph_utils.py:CreateForwardFn.__call__": "self desc warmup",
    "v1/worker/gpu/sample/gumbel.py:gumbel_sample": (
        "logits expanded_idx_mapping temperature seed pos apply_temperature is_drafting logits_cache logits_cache_col "
        "use_fp64 logits_cache_source"
    ),
}


def when_imported(name: str, act: Callable[[ModuleType], None]) -> None:
    """``act`` on a module right behind its import, now if it was imported: the processes that never draft import nothing."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Waiting(name, act))


class _Waiting(MetaPathFinder):
    """Finds one module as everyone else would, once, and acts on it behind its import."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self.name, self.act = name, act

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
