"""Writers of scaled-down folders, one for each layout of others; ``change`` is at the config and tensors before."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from dlite.target.hf import HFTarget
from tests.checkpoint import support as s

MASK = s.V - 1
ROWS = tuple(range(1, s.V, 2))  # a reduced vocabulary


@cache
def hf() -> HFTarget:
    return s.target()


def zlab(folder: Path, change: s.Change | None = None) -> Path:
    part = {"block_size": 5, "mask_token_id": MASK, "target_layer_ids": [1, 4]}
    config = s.decoder(2) | {"architectures": ["DFlashDraftModel"], "dflash_config": part, "num_target_layers": s.N}
    config["auto_map"] = {"AutoModel": "dflash.DFlashDraftModel"}
    return s.write(folder, config, s.fill(s.body_shapes(2, 2)), change)


def zlab2(folder: Path, change: s.Change | None = None) -> Path:
    shapes = s.body_shapes(2, 2)
    for i in range(2):
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{i}.{name}.base_kernel"] = (2, 2, s.D)
            shapes[f"layers.{i}.{name}.kernel_projection.weight"] = (4 * s.D // 8, s.D)
    shapes["candidate_selector.hidden_projection.weight"] = (s.RANK, s.D)
    shapes["candidate_selector.predecessor_codebook"] = (s.V, s.RANK)
    shapes["candidate_selector.successor_codebook"] = (s.V, s.RANK)
    part = {
        "block_size": 5, "mask_token_id": MASK, "target_layer_ids": [1, 4], "conv_group_size": 8, "conv_kernel_size": 2,
        "selector_rank": s.RANK, "selector_top_k": 6, "output_multiplier": 1.0,
    }  # fmt: skip
    config = s.decoder(2) | {"architectures": ["DFlash2DraftModel"], "dflash_config": part, "num_target_layers": s.N}
    return s.write(folder, config | {"is_causal": False}, s.fill(shapes), change)


def deepspec(folder: Path, change: s.Change | None = None, *, head: str | None = None) -> Path:
    config = s.decoder(2) | {
        "architectures": ["Qwen3DSparkModel"], "block_size": 4, "mask_token_id": MASK, "num_target_layers": s.N,
        "target_layer_ids": [0, 2, 4], "num_anchors": 512, "markov_rank": s.RANK if head else 0,
        "enable_confidence_head": bool(head),
    }  # fmt: skip
    config |= {"markov_head_type": head, "confidence_head_with_markov": True} if head else {}
    tensors = s.fill(s.body_shapes(2, 3) | (s.spark_shapes(head) if head else {})) | s.copies(hf())
    return s.write(folder, config, tensors, change)


def deepspec_eagle(folder: Path, change: s.Change | None = None) -> Path:
    config = s.decoder(1) | {
        "architectures": ["Qwen3Eagle3Model"], "num_target_layers": s.N, "target_layer_ids": [0, 1, 2, 3, 4],
        "ttt_length": 4, "step_loss_decay": 0.8, "draft_num_hidden_layers": 1, "target_model_name_or_path": "tiny",
    }  # fmt: skip
    return s.write(folder, config, s.fill(s.eagle_shapes(5)) | s.copies(hf()), change)


def speculators(kind: str, tokens: int, layers: int, vocab: int = s.V) -> dict[str, Any]:
    """What every config of the speculators library has."""
    config = s.decoder(layers)
    del config["architectures"], config["dtype"]
    method = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "architectures": ["X"], "auto_map": {"": "X"}, "dtype": "bfloat16", "speculators_model_type": kind,
        "speculators_version": "0.9.0", "draft_vocab_size": vocab, "target_hidden_size": None,
        "transformers_version": "5.24.0", "transformer_layer_config": config,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [method],
            "verifier": {"name_or_path": "tiny", "architectures": ["LlamaForCausalLM"]},
        },
    }  # fmt: skip


def vocabulary(ids: Sequence[int]) -> s.Tensors:
    mask = torch.zeros(s.V, dtype=torch.bool)
    mask[list(ids)] = True
    return {"d2t": torch.tensor(ids) - torch.arange(len(ids)), "t2d": mask}


def speculators_dflash(folder: Path, change: s.Change | None = None) -> Path:
    config = speculators("dflash", 4, 2, len(ROWS)) | {
        "block_size": 5, "mask_token_id": MASK, "aux_hidden_state_layer_ids": [1, 6], "sample_from_anchor": False,
        "sliding_window_non_causal": False, "projector_type": "dflash", "shift_label": False, "auf": False,
    }  # fmt: skip
    head = {"lm_head.weight": s.copies(hf(), ROWS)["lm_head.weight"]}
    return s.write(folder, config, s.fill(s.body_shapes(2, 2)) | vocabulary(ROWS) | head, change)


def speculators_dspark(folder: Path, change: s.Change | None = None) -> Path:
    config = speculators("dspark", 4, 2) | {
        "block_size": 5, "mask_token_id": MASK, "aux_hidden_state_layer_ids": [1, 3, 5], "sample_from_anchor": False,
        "markov_rank": s.RANK, "markov_head_type": "vanilla", "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }  # fmt: skip
    return s.write(folder, config, s.fill(s.body_shapes(2, 3) | s.spark_shapes("vanilla")), change)


def speculators_eagle(folder: Path, change: s.Change | None = None) -> Path:
    config = speculators("eagle3", 4, 1, len(ROWS)) | {
        "norm_before_residual": False, "norm_before_fc": False, "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": None,
    }  # fmt: skip
    config["transformer_layer_config"] |= {"model_type": "llama", "mlp_bias": False, "pretraining_tp": 1}
    del config["transformer_layer_config"]["layer_types"]
    tensors = s.fill(s.eagle_shapes(3, qk_norm=False)) | vocabulary(ROWS) | s.copies(hf(), ROWS)
    return s.write(folder, config, tensors, change)


vanilla, gated, rnn = (partial(deepspec, head=head) for head in ("vanilla", "gated", "rnn"))
