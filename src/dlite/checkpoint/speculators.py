"""The layout of vLLM's speculators library: DFlash, DSpark and EAGLE-3 with the decoder's config in a part of its own.

Target layers are counted as vLLM does: id k is the stream behind k layers, so tap k - 1. A reduced vocabulary is a table
``d2t`` of distances from draft rows to token ids, ``t2d`` its mask over the target's. The folder may repeat the target's
embedding and the rows of its output matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dlite.checkpoint.files import CONFIG, WEIGHTS, Described, Provenance
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
from dlite.errors import CheckpointError
from dlite.target.base import TargetInfo

NAME = "a DFlash, DSpark or EAGLE-3 of the speculators library"
KIND = "speculators_model_type"
DECODER = FOLDER | LAYERS
ONE_LAYER = DECODER | Keys(only={"num_hidden_layers": (1,)})
METHOD = Keys(words("speculative_tokens"), {"proposal_type": ("greedy",)}, words("verifier_accept_k accept_tolerance"))
ALL = FOLDER | Keys(
    words(f"{KIND} speculators_config transformer_layer_config draft_vocab_size target_hidden_size"),
    idle=words("speculators_version has_no_defaults_at_init base_model_ep_plan"),
)
BLOCK = ALL | Keys(
    words("block_size mask_token_id aux_hidden_state_layer_ids sample_from_anchor"),
    idle=words("sliding_window_non_causal max_anchors num_anchors"),  # the first is of sliding layers alone
)
KEYS = {
    "dflash": BLOCK
    | Keys(
        only={"projector_type": ("dflash",), "shift_label": (None, False)},
        idle=words("auf pure_draft_prefix_len emb_dim gru_hidden_dim lambda_base_start lambda_base_decay_ratio"),
    ),
    "dspark": BLOCK
    | Keys(
        words("markov_rank markov_head_type"),
        {"enable_confidence_head": (True,), "confidence_head_with_markov": (True,)},
        words("ce_loss_alpha l1_loss_alpha confidence_head_alpha loss_decay_gamma"),
    ),
    "eagle3": ALL
    | Keys(
        words("eagle_aux_hidden_state_layer_ids norm_before_residual"),
        {"norm_before_fc": (False,), "embed_requires_grad": (False,)},
        words("enable_sp_ulysses"),
    ),
}


def fits(data: Mapping[str, Any]) -> bool:
    """Is it this layout?"""
    return data.get(KIND) in KEYS


def read(data: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path, info: TargetInfo | None) -> Described:
    """The network a config describes, and the matrices it brings. Errors: ``CheckpointError``."""
    kind = data[KIND]
    check_keys(data, KEYS[kind], folder)
    if info is None:
        raise CheckpointError(
            f"{folder / CONFIG} does not say how many layers its target has. Load it with its target."
        )
    copies = take_copies(tensors)
    make, name = {
        "dflash": (_dflash, body_name),
        "dspark": (_dspark, markov_name),
        "eagle3": (_eagle3, eagle3_name),
    }[kind]
    vocab = build(lambda: _vocabulary(data, tensors, folder), folder)
    network: Any = build(lambda: make(data, vocab, folder, info), folder)
    verifier = build(lambda: data["speculators_config"]["verifier"]["name_or_path"] or "", folder)
    return Described(network, Provenance(verifier, copies=copies), name)


def _vocabulary(data: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path) -> tuple[int, ...] | None:
    """The token ids of the draft rows; None where every token has one."""
    size, all_tokens = data["draft_vocab_size"], data["transformer_layer_config"]["vocab_size"]
    if size == all_tokens:
        return None
    missing = [name for name in ("d2t", "t2d") if name not in tensors]
    if missing:
        raise CheckpointError(
            f"{folder / WEIGHTS} misses tensors: {', '.join(missing)}. Its draft vocabulary is reduced."
        )
    away, mask = tensors.pop("d2t"), tensors.pop("t2d").bool()
    ids = torch.arange(len(away), device=away.device) + away
    if len(ids) != size or len(mask) != all_tokens or not torch.equal(mask.nonzero()[:, 0], ids):
        raise CheckpointError(
            f"{folder / WEIGHTS}: d2t and t2d do not name the same {size} of {all_tokens} tokens. Fetch it again."
        )
    return tuple(ids.tolist())


def _tokens(data: Mapping[str, Any], folder: Path) -> int:
    """Drafts a round."""
    part = data["speculators_config"]
    methods = part["proposal_methods"]
    chosen = [m for m in methods if m["proposal_type"] == part.get("default_proposal_method")] or methods[:1]
    check_keys(chosen[0], METHOD, folder, "speculators_config.proposal_methods")
    return int(chosen[0]["speculative_tokens"])


def _values(
    data: Mapping[str, Any], vocab: tuple[int, ...] | None, ids: list[int], folder: Path, info: TargetInfo, keys: Keys
) -> dict[str, Any]:
    decoder = data["transformer_layer_config"]
    check_keys(decoder, keys, folder, "transformer_layer_config")
    check_keys(data, KEYS[data[KIND]] | Keys(only={"target_hidden_size": (None, decoder["hidden_size"])}), folder)
    return {
        "backbone": backbone(decoder, folder, ("qwen3", "llama") if keys is ONE_LAYER else ("qwen3",)),
        "vocab_size": decoder["vocab_size"],
        "taps": check_taps([k - 1 for k in ids], info.num_layers, folder),
        "num_target_layers": info.num_layers,
        "draft_vocab": vocab,
    }


def _block(data: Mapping[str, Any], vocab: tuple[int, ...] | None, folder: Path, info: TargetInfo) -> dict[str, Any]:
    """A block of ``block_size`` rows, of which the first, the anchor, predicts or not; both keys that say so agree."""
    K, rows = _tokens(data, folder), data["block_size"]
    predicts = data.get("sample_from_anchor", rows == K)
    if rows - (not predicts) != K:
        raise CheckpointError(
            f"{folder / CONFIG} has block_size {rows}, sample_from_anchor {predicts} and speculative_tokens {K}. Expected as "
            "many tokens as rows that predict."
        )
    own = {
        "K": K,
        "mask_token_id": data["mask_token_id"],
        "slots": "anchor_predicts" if predicts else "placeholders",
        "placeholder": "token",
    }
    return _values(data, vocab, data["aux_hidden_state_layer_ids"], folder, info, DECODER) | own


def _dflash(data: Mapping[str, Any], vocab: tuple[int, ...] | None, folder: Path, info: TargetInfo) -> DFlash:
    return DFlash(with_history(FusedConfig, **_block(data, vocab, folder, info)))


def _dspark(data: Mapping[str, Any], vocab: tuple[int, ...] | None, folder: Path, info: TargetInfo) -> DSpark:
    if vocab is not None:
        raise CheckpointError(
            f"{folder / CONFIG} has draft_vocab_size {len(vocab)}. Expected all tokens: its bias knows every token before a "
            "draft, ours one row for all that are outside."
        )
    own = {"head": data["markov_head_type"], "rank": data["markov_rank"]}
    return DSpark(with_history(DSparkConfig, **_block(data, vocab, folder, info), **own))


def _eagle3(data: Mapping[str, Any], vocab: tuple[int, ...] | None, folder: Path, info: TargetInfo) -> Eagle3:
    if data["norm_before_residual"]:
        raise CheckpointError(
            f"{folder / CONFIG} has norm_before_residual. Expected False: dlite's residual stream is the fused features as "
            "they are."
        )
    N = info.num_layers
    ids = data.get("eagle_aux_hidden_state_layer_ids") or [2, N // 2, N - 3]  # the library's own default
    values = _values(data, vocab, ids, folder, info, ONE_LAYER)
    return Eagle3(with_history(RecursiveConfig, **values, K=_tokens(data, folder)))
