"""The target inside a vLLM worker, as a DLite borrows from it, and the drafter opened for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlite.drafters.dlite import DLite
from dlite.errors import DliteError, TargetError
from dlite.serve.drafting import Lent, open_dlite
from dlite.target.hf import info_of


def open_for(vllm_config: Any, target_model: Any, device: torch.device) -> DLite:
    """The engine's drafter, whole on every rank of a tensor-parallel group. Errors: ``DliteError``."""
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise DliteError(
            "the engine is pipeline-parallel. A DLite needs the target's embedding beside its last layer: expected "
            "--pipeline-parallel-size 1. Use tensor parallelism."
        )
    speculative, target = vllm_config.speculative_config, vllm_config.model_config
    draft = speculative.draft_model_config
    lent = lend(target_model, info_of(target.hf_text_config, target.model))
    folder = folder_of(draft.model, draft.revision, vllm_config.load_config.download_dir)
    return open_dlite(folder, lent, speculative.num_speculative_tokens, device, target.dtype)


def lend(target_model: Any, info: Any) -> Lent:
    """The embedding and final norm of a vLLM model. Their own tensor parallelism stays as it is: every rank asks alike."""
    language = target_model.get_language_model() if hasattr(target_model, "get_language_model") else target_model
    inner = getattr(language, "model", None)
    table, norm = getattr(inner, "embed_tokens", None), getattr(inner, "norm", None)
    if table is None or norm is None:
        raise TargetError(
            f"{type(target_model).__name__} has no model.embed_tokens and model.norm, where a DLite borrows the embedding and "
            "the final norm. Expected a decoder such as Qwen3 or Llama."
        )
    # embed_input_ids also scales where the family does (Gemma); a drafter takes no part in an adapter (LoRA)
    adapted = getattr(table, "base_layer", None)
    words = adapted if adapted is not None else getattr(inner, "embed_input_ids", table)

    def embed(tokens: Tensor) -> Tensor:
        return words(tokens.flatten()).view(*tokens.shape, info.hidden_size)  # type: ignore[no-any-return]

    def final_norm(tap: Tensor) -> Tensor:
        return norm(tap.reshape(-1, info.hidden_size)).view(tap.shape)  # type: ignore[no-any-return]

    return Lent(info, embed, final_norm)


def folder_of(model: str, revision: str | None, cache: str | None) -> Path:
    """A drafter's folder: as it is, or from the hub."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, revision=revision, cache_dir=cache))
