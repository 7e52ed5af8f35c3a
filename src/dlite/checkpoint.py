"""DLite drafters on disk: the published ``dlite_v1`` / ``dlite_v2`` layout, read and written with strict keys.

A Hugging Face folder: ``config.json`` (a Qwen3-style config with a ``dlite_config`` part) and ``model.safetensors``.
What ours has beyond the published form stands in ``dlite_config`` too: a learned placeholder, a reduced draft
vocabulary, which last tap was trained on, and the target it belongs to.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dlite.drafters.dlite import DLite, DLiteConfig
from dlite.errors import CheckpointError
from dlite.nn.backbone import BackboneConfig
from dlite.target.base import TargetInfo

WEIGHTS, CONFIG = "model.safetensors", "config.json"
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
OWN_KEYS = {"placeholder", "last_tap", "draft_vocab_size", "target", "tokenizer_hash"}


@dataclass(frozen=True)
class Provenance:
    """The target a drafter was trained for; empty strings where a published checkpoint does not say."""

    target: str = ""
    tokenizer_hash: str = ""


def save_drafter(
    drafter: DLite, folder: Path, info: TargetInfo, *, dtype: torch.dtype = torch.float32, published: bool = False
) -> None:
    """Write a drafter. ``published`` keeps to the published keys and refuses what they cannot say."""
    config = drafter.config
    if config.history_window:
        raise CheckpointError("a teacher with history is a training aid and cannot be saved as a drafter.")
    if published and (config.placeholder, config.draft_vocab, config.last_tap) != ("token", None, "normed"):
        raise CheckpointError(
            "the published layout has no learned placeholder, no draft vocabulary and no raw last tap. Train with "
            "placeholder = 'token', last_tap = 'normed' and without draft_vocab_size to write it."
        )
    tensors = {k: v.detach().to(dtype).contiguous() for k, v in drafter.state_dict().items()}
    if config.draft_vocab is not None:
        tensors["draft_vocab"] = torch.tensor(config.draft_vocab)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / f"{WEIGHTS}.part", metadata={"format": "pt"})
    (folder / f"{WEIGHTS}.part").replace(folder / WEIGHTS)
    text = json.dumps(_to_json(config, info, dtype, published), indent=2)
    (folder / CONFIG).write_text(text + "\n")


def load_drafter(folder: str | Path, info: TargetInfo | None = None) -> tuple[DLite, Provenance]:
    """Read a drafter; with ``info``, refuse one that does not fit that target. Errors: ``CheckpointError``."""
    folder = Path(folder)
    data = _read_config(folder)
    config, provenance = _from_json(data, folder), _provenance(data)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder / WEIGHTS} is missing or damaged ({error}). Expected the drafter's weights. Fetch or train it again."
        ) from None
    if "draft_vocab" in tensors:
        config = _replace_vocab(config, tuple(tensors.pop("draft_vocab").tolist()))
    if info is not None:
        check_fit(config, provenance, info)
    with torch.device("meta"):
        drafter = DLite(config)
    _check_tensors(drafter, tensors, folder)
    drafter.load_state_dict({k: v.float() for k, v in tensors.items()}, assign=True)
    _restore_buffers(drafter)
    return drafter, provenance


def check_fit(config: DLiteConfig, provenance: Provenance, info: TargetInfo) -> None:
    """Refuse a drafter made for another target, naming the first thing that differs."""
    pairs = [
        ("layers", config.num_target_layers, info.num_layers),
        ("hidden size", config.backbone.hidden_size, info.hidden_size),
        ("vocabulary", config.vocab_size, info.vocab_size),
        ("tokenizer hash", provenance.tokenizer_hash or info.tokenizer_hash, info.tokenizer_hash),
    ]
    for what, found, expected in pairs:
        if found != expected:
            raise CheckpointError(
                f"this drafter was made for {provenance.target or 'a target'} with {what} {found}; {info.name} has "
                f"{expected}. Pass the target it was trained for, or train a drafter for {info.name}."
            )
    if max(config.taps) >= info.num_layers:
        raise CheckpointError(
            f"taps {config.taps} do not fit a {info.num_layers}-layer target. Expected every tap < {info.num_layers}. "
            "Pass the target it was trained for."
        )


def _to_json(config: DLiteConfig, info: TargetInfo, dtype: torch.dtype, published: bool) -> dict[str, Any]:
    b = config.backbone
    own = {
        "placeholder": config.placeholder,
        "last_tap": config.last_tap,
        "draft_vocab_size": None if config.draft_vocab is None else len(config.draft_vocab),
        "target": info.name,
        "tokenizer_hash": info.tokenizer_hash,
    }
    return {
        "architectures": ["DLiteDraftModel"],
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


def _from_json(data: dict[str, Any], folder: Path) -> DLiteConfig:
    if data.get("architectures") != ["DLiteDraftModel"]:
        raise CheckpointError(
            f"{folder} holds {data.get('architectures')}. Expected architectures ['DLiteDraftModel']. Give a DLite drafter."
        )
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
        backbone = BackboneConfig(
            hidden_size=data["hidden_size"],
            num_layers=data["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=data["num_key_value_heads"],
            head_dim=data.get("head_dim", data["hidden_size"] // heads),
            intermediate_size=data["intermediate_size"],
            rms_norm_eps=data.get("rms_norm_eps", 1e-6),
            rope_theta=_theta(data),
        )
        return DLiteConfig(
            backbone=backbone,
            vocab_size=data["vocab_size"],
            K=data["block_size"] - 1,
            taps=tuple(part["target_layer_ids"]),
            num_target_layers=data["num_target_layers"],
            rank=part["sequential_rank"],
            mask_token_id=part["mask_token_id"],
            anchor_group=group,  # type: ignore[arg-type]
            placeholder=part.get("placeholder", "token"),
            last_tap=part.get("last_tap", "normed"),  # the published checkpoints ran with the normed one
        )
    except KeyError as error:
        raise CheckpointError(
            f"{folder / CONFIG} lacks {error}. Expected a DLite config. Fetch or train it again."
        ) from None


def _theta(data: dict[str, Any]) -> float:
    nested = data.get("rope_parameters") or {}
    return float(data.get("rope_theta", nested.get("rope_theta", 1e6)))


def _provenance(data: dict[str, Any]) -> Provenance:
    part = data.get("dlite_config", {})
    return Provenance(part.get("target", ""), part.get("tokenizer_hash", ""))


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(f"there is no drafter folder {folder}. Expected a folder with {CONFIG} and {WEIGHTS}.")
    try:
        data = json.loads((folder / CONFIG).read_text())
        if not isinstance(data, dict):
            raise ValueError(f"it holds a JSON {type(data).__name__}, not an object")
        return data
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read ({error}). Expected a DLite drafter folder.") from None


def _replace_vocab(config: DLiteConfig, vocab: tuple[int, ...]) -> DLiteConfig:
    values = {f.name: getattr(config, f.name) for f in fields(DLiteConfig)}
    return DLiteConfig(**{**values, "draft_vocab": vocab})


def _check_tensors(drafter: DLite, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    expected = drafter.state_dict()
    for what, names in (("misses", set(expected) - set(tensors)), ("has unknown", set(tensors) - set(expected))):
        if names:
            raise CheckpointError(
                f"{folder / WEIGHTS} {what} tensors: {', '.join(sorted(names)[:5])}{' ...' if len(names) > 5 else ''}. "
                "Expected exactly those of its config. Weights are never dropped silently."
            )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise CheckpointError(
                f"{folder / WEIGHTS}: {name} has shape {tuple(tensor.shape)}. Its config asks for {tuple(expected[name].shape)}."
            )


def _restore_buffers(drafter: DLite) -> None:
    """Id maps are made from the config, not stored; on the meta device they were not made yet."""
    fresh = DLite.id_maps(drafter.config)
    drafter.draft_ids, drafter.draft_rows = fresh
