"""z-lab's layout of DFlash (2602.06036) and DFlash2: a Qwen3-style config with a ``dflash_config`` part.

A block of ``block_size`` rows is the anchor and masks that predict themselves. Embedding and output matrix are the
target's and not on disk. Older folders have some keys of the part at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dlite.checkpoint.files import Described, Provenance
from dlite.checkpoint.published import (
    FOLDER,
    LAYERS,
    Keys,
    backbone,
    body_name,
    build,
    check_keys,
    check_taps,
    with_history,
    words,
)
from dlite.drafters.dflash import DFlash
from dlite.drafters.dflash2 import DFlash2, DFlash2Config
from dlite.drafters.fused import FusedConfig
from dlite.target.base import TargetInfo

NAME = "z-lab's DFlash"
MOVED = words("block_size mask_token_id target_layer_ids")
TOP = FOLDER | LAYERS | Keys(MOVED | words("dflash_config num_target_layers"))
PART = Keys(
    MOVED,
    {
        "causal": (False,),
        "use_swa": (False,),
        "use_aux_hidden_state": (True,),
        "attention_sink_bias": (False,),
        "sample_from_anchor": (False,),
        "input_embedding_scale": (1.0,),
        "output_multiplier": (1.0,),
        "final_logit_softcapping": (None, 0.0),
    },
)
PART2 = PART | Keys(words("conv_group_size selector_rank selector_top_k"), {"conv_kernel_size": (2,)})


def fits(data: Mapping[str, Any]) -> bool:
    """Is it this layout?"""
    return data.get("architectures") in (["DFlashDraftModel"], ["DFlash2DraftModel"])


def read(data: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path, info: TargetInfo | None) -> Described:
    """The network a config describes. Errors: ``CheckpointError``."""
    second = data["architectures"] == ["DFlash2DraftModel"]
    check_keys(data, TOP, folder)
    part = data.get("dflash_config") or {}
    check_keys(part, PART2 if second else PART, folder, "dflash_config")
    part = {key: data[key] for key in MOVED if key in data} | part
    make = _dflash2 if second else _dflash
    return Described(build(lambda: make(data, part, folder), folder), Provenance(), _name)


def _values(data: Mapping[str, Any], part: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {
        "backbone": backbone(data, folder),
        "vocab_size": data["vocab_size"],
        "K": part["block_size"] - 1,
        "taps": check_taps(part["target_layer_ids"], data["num_target_layers"] - 1, folder),
        "num_target_layers": data["num_target_layers"],
        "mask_token_id": part["mask_token_id"],
        "slots": "placeholders",
        "placeholder": "token",
    }


def _dflash(data: Mapping[str, Any], part: Mapping[str, Any], folder: Path) -> DFlash:
    return DFlash(with_history(FusedConfig, **_values(data, part, folder)))


def _dflash2(data: Mapping[str, Any], part: Mapping[str, Any], folder: Path) -> DFlash2:
    own = {
        "conv_group": part["conv_group_size"],
        "candidates": part["selector_top_k"],
        "rank": part["selector_rank"],
    }
    return DFlash2(with_history(DFlash2Config, **_values(data, part, folder), **own))


def _name(name: str) -> str:
    for ours, theirs in (
        ("pairwise.prev_token_embedding.weight", "candidate_selector.predecessor_codebook"),
        ("pairwise.next_token_embedding.weight", "candidate_selector.successor_codebook"),
        ("pairwise.hidden_proj", "candidate_selector.hidden_projection"),
    ):
        name = name.replace(ours, theirs)
    return body_name(name).replace("_conv.base", "_conv.base_kernel").replace("_conv.steer", "_conv.kernel_projection")
