"""The layout of DeepSpec (2607.05147), in which ``deepseek-ai/*_qwen3_*`` folders are published.

``Qwen3DSparkModel`` is a DSpark, or with ``markov_rank`` 0 a DFlash; the anchor predicts too, so that a block of
``block_size`` rows gives as many drafts. ``Qwen3Eagle3Model`` is an EAGLE-3 of ``ttt_length`` steps. The config is the
target's own with a few keys more, and the folder repeats the target's embedding and output matrix.
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
    eagle3_name,
    markov_name,
    take_copies,
    with_history,
    words,
)
from dlite.drafters.dflash import DFlash
from dlite.drafters.dspark import DSpark, DSparkConfig
from dlite.drafters.eagle3 import Eagle3
from dlite.drafters.fused import FusedConfig
from dlite.drafters.recursive import RecursiveConfig
from dlite.target.base import TargetInfo

NAME = "DeepSpec's DFlash, DSpark or EAGLE-3"
BOTH = FOLDER | LAYERS | Keys(words("num_target_layers target_layer_ids"))
BLOCK = BOTH | Keys(
    read=words("block_size mask_token_id markov_rank markov_head_type"),
    only={"enable_confidence_head": (False,), "confidence_head_with_markov": (True, False)},
    idle=words("num_anchors"),
)
SPARK = BLOCK | Keys(only={"enable_confidence_head": (True,), "confidence_head_with_markov": (True,)})
EAGLE = BOTH | Keys(
    read=words("ttt_length target_model_name_or_path"),
    only={"draft_num_hidden_layers": (1,), "num_hidden_layers": (1,)},
    idle=words("step_loss_decay"),
)


def fits(data: Mapping[str, Any]) -> bool:
    """Is it this layout?"""
    return data.get("architectures") in (["Qwen3DSparkModel"], ["Qwen3Eagle3Model"])


def read(data: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path, info: TargetInfo | None) -> Described:
    """The network a config describes, and the matrices it brings. Errors: ``CheckpointError``."""
    copies = take_copies(tensors)
    if data["architectures"] == ["Qwen3Eagle3Model"]:
        check_keys(data, EAGLE, folder)
        network: Any = build(lambda: _eagle3(data, folder), folder)
        return Described(network, Provenance(data.get("target_model_name_or_path", ""), copies=copies), eagle3_name)
    with_bias = build(lambda: data["markov_rank"] > 0, folder)
    check_keys(data, SPARK if with_bias else BLOCK, folder)
    network = build(lambda: (_dspark if with_bias else _dflash)(data, folder), folder)
    return Described(network, Provenance(copies=copies), markov_name if with_bias else body_name)


def _values(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    return {
        "backbone": backbone(data, folder),
        "vocab_size": data["vocab_size"],
        "taps": check_taps(data["target_layer_ids"], data["num_target_layers"] - 1, folder),
        "num_target_layers": data["num_target_layers"],
    }


def _block(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    own = {"K": data["block_size"], "mask_token_id": data["mask_token_id"], "slots": "anchor_predicts"}
    return _values(data, folder) | own | {"placeholder": "token"}


def _dflash(data: Mapping[str, Any], folder: Path) -> DFlash:
    return DFlash(with_history(FusedConfig, **_block(data, folder)))


def _dspark(data: Mapping[str, Any], folder: Path) -> DSpark:
    own = {"head": data["markov_head_type"], "rank": data["markov_rank"]}
    return DSpark(with_history(DSparkConfig, **_block(data, folder), **own))


def _eagle3(data: Mapping[str, Any], folder: Path) -> Eagle3:
    return Eagle3(with_history(RecursiveConfig, **_values(data, folder), K=data["ttt_length"]))
