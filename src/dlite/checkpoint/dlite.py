"""The published ``dlite_v1`` / ``dlite_v2`` layout: a Qwen3-style config with a ``dlite_config`` part.

What ours has beyond the published form stands in ``dlite_config`` too: a learned placeholder, a reduced draft
vocabulary, which last tap was trained on, the target it belongs to, and a confidence head.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from dlite.checkpoint.files import CONFIG, Described, Provenance, take_vocabulary
from dlite.drafters.dlite import DLite, DLiteConfig
from dlite.errors import CheckpointError
from dlite.target.base import TargetInfo

NAME = "a published DLite"
ARCHITECTURE = "DLiteDraftModel"
VERSIONS = {1: "dlite_v1", 2: "dlite_v2"}
PUBLISHED_KEYS = {
    "architecture_version",
    "model_role",
    "anchor_group_size",
    "chs_num_layers",
    "target_layer_ids",
    "sequential_head",
    "sequential_rank",
    "mask_token_id",
}
OWN_KEYS = {"placeholder", "last_tap", "draft_vocab_size", "target", "tokenizer_hash", "confidence"}


def can_say(config: DLiteConfig) -> bool:
    """False for the controls of the study, which have no place in this layout."""
    return not config.history_window and config.join == "sequence" and config.query == "words"


def write(drafter: DLite, info: TargetInfo, dtype: torch.dtype, *, published: bool) -> dict[str, Any]:
    """The config of a drafter. ``published`` keeps to the published keys and refuses what they cannot say."""
    config = drafter.config
    if published and config.confidence:
        raise CheckpointError(
            "the published layout has no confidence head. Save without published, or train without it."
        )
    if published and (config.placeholder, config.draft_vocab, config.last_tap) != ("token", None, "normed"):
        raise CheckpointError(
            "the published layout has no learned placeholder, no draft vocabulary and no raw last tap. Train with "
            "placeholder = 'token', last_tap = 'normed' and without draft_vocab_size to write it."
        )
    return _to_json(config, info, dtype, published)


def fits(data: Mapping[str, Any]) -> bool:
    """Is it this layout?"""
    return data.get("architectures") == [ARCHITECTURE]


def read(data: dict[str, Any], tensors: dict[str, Tensor], folder: Path, info: TargetInfo | None) -> Described:
    """The network a config describes, and where it comes from. Errors: ``CheckpointError``."""
    config = _from_json(data, folder, take_vocabulary(tensors))
    part = data["dlite_config"]
    return Described(DLite(config), Provenance(part.get("target", ""), part.get("tokenizer_hash", "")))


def _to_json(config: DLiteConfig, info: TargetInfo, dtype: torch.dtype, published: bool) -> dict[str, Any]:
    b = config.backbone
    own = {
        "placeholder": config.placeholder,
        "last_tap": config.last_tap,
        "draft_vocab_size": None if config.draft_vocab is None else len(config.draft_vocab),
        "target": info.name,
        "tokenizer_hash": info.tokenizer_hash,
        **({"confidence": True} if config.confidence else {}),
    }
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": b.hidden_size,
        "num_hidden_layers": b.num_layers,
        "num_attention_heads": b.num_heads,
        "num_key_value_heads": b.num_kv_heads,
        "head_dim": b.head_dim,
        "intermediate_size": b.intermediate_size,
        "rms_norm_eps": b.rms_norm_eps,
        "rope_theta": b.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": info.context_length,
        "dtype": str(dtype).removeprefix("torch."),
        "block_size": config.K + 1,
        "num_target_layers": config.num_target_layers,
        "dlite_config": {
            "architecture_version": VERSIONS[config.anchor_group],
            "model_role": "pivot_q_student",
            "anchor_group_size": 1,
            "chs_num_layers": len(config.taps),
            "target_layer_ids": list(config.taps),
            "sequential_head": "rnn",
            "sequential_rank": config.rank,
            "mask_token_id": config.mask_token_id,
            **({} if published else own),
        },
    }


def _from_json(data: dict[str, Any], folder: Path, vocab: tuple[int, ...] | None) -> DLiteConfig:
    part = data.get("dlite_config")
    try:
        if not isinstance(part, dict):
            raise KeyError("dlite_config")
        unknown = sorted(set(part) - PUBLISHED_KEYS - OWN_KEYS)
        if unknown:
            raise CheckpointError(
                f"{folder / CONFIG} has unknown dlite_config keys {unknown}. This version of dlite cannot read it."
            )
        group = {name: size for size, name in VERSIONS.items()}.get(part["architecture_version"])
        if group is None or part["sequential_head"] != "rnn" or part.get("anchor_group_size", 1) != 1:
            raise CheckpointError(
                f"{folder / CONFIG} describes {part['architecture_version']} with head {part['sequential_head']} and anchor "
                f"group {part.get('anchor_group_size')}. Expected dlite_v1 or dlite_v2, head rnn, group 1."
            )
        heads = data["num_attention_heads"]
        backbone = {
            "hidden_size": data["hidden_size"],
            "num_layers": data["num_hidden_layers"],
            "num_heads": heads,
            "num_kv_heads": data["num_key_value_heads"],
            "head_dim": data.get("head_dim", data["hidden_size"] // heads),
            "intermediate_size": data["intermediate_size"],
            "rms_norm_eps": data.get("rms_norm_eps", 1e-6),
            "rope_theta": _theta(data),
        }
        values = {
            "backbone": backbone,
            "vocab_size": data["vocab_size"],
            "K": data["block_size"] - 1,
            "taps": tuple(part["target_layer_ids"]),
            "num_target_layers": data["num_target_layers"],
            "rank": part["sequential_rank"],
            "mask_token_id": part["mask_token_id"],
            "anchor_group": group,
            "placeholder": part.get("placeholder", "token"),
            "draft_vocab": vocab,
            "confidence": part.get("confidence", False),
            "last_tap": part.get("last_tap", "normed"),  # the published checkpoints ran with the normed one
        }
        return TypeAdapter(DLiteConfig).validate_python(values)
    except KeyError as error:
        raise CheckpointError(
            f"{folder / CONFIG} lacks {error}. Expected a DLite config. Fetch or train it again."
        ) from None
    except (TypeError, ValueError, AttributeError) as error:  # pydantic's ValidationError is a ValueError
        raise CheckpointError(
            f"{folder / CONFIG} has a value of the wrong kind ({' '.join(str(error).split()[:24])}). Expected a DLite config. "
            "Fetch or train it again."
        ) from None


def _theta(data: dict[str, Any]) -> float:
    nested = data.get("rope_parameters") or {}
    return float(data.get("rope_theta", nested.get("rope_theta", 1e6)))
