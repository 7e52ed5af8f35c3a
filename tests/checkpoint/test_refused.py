"""What a reader of the layouts of others does not understand it refuses, and says the key or the tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.checkpoint import load_drafter
from dlite.errors import CheckpointError
from tests.checkpoint import folders as f
from tests.checkpoint import support as s


def put(where: str, value: Any) -> s.Change:
    """Set a key, given as a path; ``None`` of Python stays a value of the config."""

    def change(config: dict[str, Any], _: s.Tensors) -> None:
        *path, last = where.split("/")
        for key in path:
            config = config[int(key)] if isinstance(config, list) else config[key]
        config[last] = value

    return change


def cut(where: str) -> s.Change:
    def change(config: dict[str, Any], _: s.Tensors) -> None:
        *path, last = where.split("/")
        for key in path:
            config = config[key]
        del config[last]

    return change


def tensor(name: str, value: Tensor | None) -> s.Change:
    def change(_: dict[str, Any], tensors: s.Tensors) -> None:
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value

    return change


LIBRARY = "transformer_layer_config"
REFUSED: list[tuple[Any, s.Change, str]] = [
    (f.zlab, put("use_moe", True), "keys that dlite does not understand: use_moe"),
    (f.zlab, put("dflash_config/markov_rank", 3), "dflash_config has keys that dlite does not understand: markov_rank"),
    (f.zlab, put("dflash_config/causal", True), "dflash_config has causal True. Expected False"),
    (f.zlab, put("dflash_config/output_multiplier", 0.2), "output_multiplier 0.2. Expected 1.0"),
    (f.zlab, put("dflash_config/final_logit_softcapping", 20.0), "final_logit_softcapping 20.0. Expected None or 0.0"),
    (f.zlab, put("attention_bias", True), "attention_bias True"),
    (f.zlab, put("hidden_act", "gelu"), "hidden_act 'gelu'. Expected 'silu'"),
    (f.zlab, put("model_type", "llama"), "model_type 'llama'. Expected 'qwen3'"),
    (f.zlab, put("layer_types", ["full_attention", "sliding_attention"]), "layer_types .*'sliding_attention'"),
    (f.zlab, put("rope_scaling", {"type": "linear", "factor": 2}), "rope_scaling .*Expected None"),
    (f.zlab, put("rope_parameters/rope_type", "yarn"), "rope_parameters has rope_type 'yarn'. Expected 'default'"),
    (f.zlab, put("rope_parameters/mrope_section", [1]), "rope_parameters has keys .*: mrope_section"),
    (f.zlab, put("rope_theta", 1e4), "two values of rope_theta"),
    (f.zlab, put("dflash_config/target_layer_ids", [1, 5]), "output of target layer 5. Expected 0 to 4"),
    (f.zlab, put("dflash_config/block_size", "x"), "value of the wrong kind"),
    (f.zlab, put("hidden_size", "wide"), "value of the wrong kind"),
    (f.zlab, cut("dflash_config/mask_token_id"), "lacks 'mask_token_id'"),
    (f.zlab, cut("rms_norm_eps"), "lacks 'rms_norm_eps'"),
    (f.zlab, cut("rope_parameters"), "lacks 'rope_theta'"),
    (f.zlab, cut("num_target_layers"), "lacks 'num_target_layers'"),
    (f.zlab, tensor("fc.weight", None), "misses tensors: fc.weight"),
    (f.zlab, tensor("fc.bias", torch.zeros(s.D)), "has unknown tensors: fc.bias"),
    (f.zlab, tensor("hidden_norm.weight", torch.zeros(3)), r"hidden_norm.weight has shape \(3,\)"),
    (f.zlab, tensor("lm_head.weight", torch.zeros(2, 2)), "has unknown tensors: lm_head.weight"),
    (f.zlab2, put("dflash_config/conv_kernel_size", 3), "conv_kernel_size 3. Expected 2"),
    (f.zlab2, tensor("candidate_selector.successor_codebook", None), "misses tensors: candidate_selector.successor_codebook"),
    (f.deepspec, put("target_layer_ids", [-1, 2, 4]), "output of target layer -1"),
    (f.deepspec, put("markov_rank", 4), "enable_confidence_head False. Expected True"),
    (f.deepspec, cut("markov_rank"), "lacks 'markov_rank'"),
    (f.deepspec, put("partial_rotary_factor", 0.25), "does not understand: partial_rotary_factor"),
    (f.rnn, put("markov_head_type", "gru"), "value of the wrong kind"),
    (f.rnn, put("markov_head_type", "vanilla"), "unknown tensors: markov_head.joint_proj"),
    (f.rnn, put("confidence_head_with_markov", False), "confidence_head_with_markov False"),
    (f.rnn, tensor("confidence_head.proj.bias", None), "misses tensors: confidence_head.proj.bias"),
    (f.deepspec_eagle, put("draft_num_hidden_layers", 2), "draft_num_hidden_layers 2. Expected 1"),
    (f.deepspec_eagle, put("num_hidden_layers", 2), "num_hidden_layers 2. Expected 1"),
    (f.deepspec_eagle, tensor("d2t", torch.zeros(3)), "has unknown tensors: d2t"),
    (f.deepspec_eagle, tensor("layers.0.hidden_norm.weight", None), "misses tensors: layers.0.hidden_norm.weight"),
    (f.speculators_dflash, put("projector_type", "domino"), "projector_type 'domino'. Expected 'dflash'"),
    (f.speculators_dflash, put(f"{LIBRARY}/sinks", True), f"{LIBRARY} has keys that dlite does not understand: sinks"),
    (f.speculators_dflash, put("target_hidden_size", 64), "target_hidden_size 64. Expected None or 32"),
    (f.speculators_dflash, put("aux_hidden_state_layer_ids", [0, 6]), "output of target layer -1"),
    (f.speculators_dflash, put("draft_vocab_size", 12), "do not name the same 12 of 37 tokens"),
    (f.speculators_dflash, tensor("t2d", None), "misses tensors: t2d"),
    (f.speculators_dflash, tensor("d2t", torch.zeros(len(f.ROWS), dtype=torch.long)), "do not name the same 18 of 37 tokens"),
    (f.speculators_dflash, put("speculators_config/proposal_methods/0/proposal_type", "tree"), "proposal_type 'tree'"),
    (f.speculators_dflash, cut("speculators_config"), "lacks 'speculators_config'"),
    (f.speculators_dspark, put("enable_confidence_head", False), "enable_confidence_head False. Expected True"),
    (f.speculators_eagle, put("norm_before_residual", True), "has norm_before_residual. Expected False"),
    (f.speculators_eagle, cut("norm_before_residual"), "lacks 'norm_before_residual'"),
    (f.speculators_eagle, put("norm_before_fc", True), "norm_before_fc True"),
    (f.speculators_eagle, put("speculators_config/verifier", 3), "value of the wrong kind"),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "change", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_what_is_not_understood_is_refused_by_name(writer: Any, change: s.Change, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_drafter(writer(tmp_path, change), f.hf().info)


def test_a_dspark_with_a_reduced_vocabulary_is_refused(tmp_path: Path) -> None:
    def change(config: dict[str, Any], tensors: s.Tensors) -> None:
        config["draft_vocab_size"] = len(f.ROWS)
        tensors |= f.vocabulary(f.ROWS)

    with pytest.raises(CheckpointError, match="draft_vocab_size 18. Expected all tokens"):
        load_drafter(f.speculators_dspark(tmp_path, change), f.hf().info)


def test_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="with layers 6; tiny has 7"):
        load_drafter(f.zlab(tmp_path), replace(f.hf().info, num_layers=7))
