"""What the layouts of other projects share: configs read key by key, Qwen3-style layers, tensors under their names.

A key is read, or must have a value that changes nothing here, or says nothing about the network. Any other is refused:
it may say that the drafter works in a way that we would not notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter
from torch import Tensor

from dlite.checkpoint.files import CONFIG, Provenance
from dlite.config import DrafterRecipe
from dlite.errors import CheckpointError
from dlite.target.base import Target

Config = TypeVar("Config")
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Keys:
    """The keys of one part of a config: those that are read, the only values of others, and those of no consequence."""

    read: frozenset[str] = frozenset()
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()

    def __or__(self, other: Keys) -> Keys:
        return Keys(self.read | other.read, {**self.only, **other.only}, self.idle | other.idle)


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


FOLDER = Keys(
    idle=words(
        "architectures auto_map bos_token_id eos_token_id pad_token_id dtype torch_dtype transformers_version use_cache "
        "tie_word_embeddings"
    )
)
LAYERS = Keys(
    read=words(
        "model_type hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size "
        "rms_norm_eps rope_theta rope_parameters vocab_size layer_types use_sliding_window"
    ),
    only={
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "pretraining_tp": (1,),
        "rope_scaling": (None,),
        "is_causal": (False,),
        "is_neox_style": (True,),
    },
    idle=words("attention_dropout initializer_range max_position_embeddings max_window_layers sliding_window"),
)
ROPE = Keys(words("rope_theta"), {"rope_type": ("default",)})


def check_keys(data: Mapping[str, Any], keys: Keys, folder: Path, part: str = "") -> None:
    """Refuse keys that are not known and values that mean another network. Errors: ``CheckpointError`` naming them."""
    where = f"{folder / CONFIG}{part and ': '}{part}"
    unknown = sorted(set(data) - keys.read - set(keys.only) - keys.idle)
    if unknown:
        raise CheckpointError(
            f"{where} has keys that dlite does not understand: {', '.join(unknown)}. They may change what the network "
            "computes, so it is not read."
        )
    for key, values in keys.only.items():
        if key in data and data[key] not in values:
            raise CheckpointError(
                f"{where} has {key} {data[key]!r}. Expected {' or '.join(map(repr, values))}: dlite has no such network."
            )


def backbone(data: Mapping[str, Any], folder: Path, families: tuple[str, ...] = ("qwen3",)) -> dict[str, Any]:
    """The fields of ``BackboneConfig`` from the config of a decoder. Errors: ``KeyError`` and ``CheckpointError``."""
    check_keys({"model_type": data["model_type"]}, Keys(only={"model_type": families}), folder)
    rope = data.get("rope_parameters") or {}
    check_keys(rope, ROPE, folder, "rope_parameters")
    thetas = {part["rope_theta"] for part in (data, rope) if "rope_theta" in part}
    if len(thetas) > 1:
        raise CheckpointError(f"{folder / CONFIG} has two values of rope_theta: {sorted(thetas)}. Expected one.")
    kinds = data.get("layer_types") or ["sliding_attention" if data.get("use_sliding_window") else "full_attention"]
    check_keys({"layer_types": sorted(set(kinds))}, Keys(only={"layer_types": (["full_attention"],)}), folder)
    return {
        "hidden_size": data["hidden_size"],
        "num_layers": data["num_hidden_layers"],
        "num_heads": data["num_attention_heads"],
        "num_kv_heads": data["num_key_value_heads"],
        "head_dim": data.get("head_dim") or data["hidden_size"] // data["num_attention_heads"],
        "intermediate_size": data["intermediate_size"],
        "rms_norm_eps": data["rms_norm_eps"],
        "rope_theta": thetas.pop() if thetas else data["rope_theta"],
        "qk_norm": data["model_type"] == "qwen3",
    }


def build(make: Callable[[], Config], folder: Path) -> Config:
    """What ``make`` makes of a config. Errors: ``CheckpointError`` for a key that is missing or of the wrong kind."""
    try:
        return make()
    except KeyError as error:
        raise CheckpointError(f"{folder / CONFIG} lacks {error}. Expected the config it was published with.") from None
    except (TypeError, ValueError, AttributeError, IndexError) as error:  # pydantic's ValidationError is a ValueError
        reason = " ".join(str(error).split()[:24])
        raise CheckpointError(f"{folder / CONFIG} has a value of the wrong kind ({reason}). Fetch it again.") from None


def with_history(kind: type[Config], **values: Any) -> Config:
    """A config whose history has no bound, checked by its types. ``history`` is what a recipe would train with."""
    return TypeAdapter(kind).validate_python({"window": None, "history": DrafterRecipe().history - 1} | values)


def check_taps(taps: Iterable[int], layers: int, folder: Path) -> tuple[int, ...]:
    """Target layers whose raw output is read, of the first ``layers``. Errors: ``CheckpointError`` for another."""
    taps = tuple(taps)
    wrong = [tap for tap in taps if not 0 <= tap < layers]
    if wrong:
        raise CheckpointError(
            f"{folder / CONFIG} reads the output of target layer {wrong[0]}. Expected 0 to {layers - 1}: -1 is the "
            "embedding, and where the last layer is read it is before the final norm."
        )
    return taps


def body_name(name: str) -> str:
    """The name that z-lab and DeepSpec gave a tensor of ``FusedBody``."""
    return name.removeprefix("body.").replace("fuse_taps.", "fc.").replace("fuse_norm.", "hidden_norm.")


def markov_name(name: str) -> str:
    """The name that DeepSpec gave a tensor of ``DSpark``."""
    for ours, theirs in (
        ("markov.prev_token_embedding", "markov_head.markov_w1"),
        ("markov.output_proj", "markov_head.markov_w2"),
        ("markov.cell", "markov_head"),
        ("confidence", "confidence_head"),
    ):
        if name.startswith(f"{ours}."):
            return theirs + name.removeprefix(ours)
    return body_name(name)


def eagle3_name(name: str) -> str:
    """The name that DeepSpec and speculators gave a tensor of ``Eagle3``."""
    return body_name(name).replace("entry.word_norm", "input_layernorm").replace("entry.feature_norm", "hidden_norm")


def take_copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Take out what must repeat the target's own matrices: see ``check_copies``."""
    return {name: tensors.pop(name) for name in (EMBEDDING, HEAD) if name in tensors}


def check_copies(provenance: Provenance, target: Target, vocab: tuple[int, ...] | None) -> None:
    """Refuse a drafter with matrices of its own where ours borrows the target's. Errors: ``CheckpointError``."""
    for name, own in provenance.copies.items():
        if name == HEAD:
            theirs = target.output_weight()[0]
            theirs = theirs if vocab is None else theirs[list(vocab)]
        else:
            theirs = target.embed(torch.arange(target.info.vocab_size))
        own = own.to(theirs)
        if own.shape != theirs.shape or (own - theirs).norm() > 0.01 * theirs.norm():
            raise CheckpointError(
                f"{name} of this drafter is not the target's own, which dlite uses in its place. Expected the same numbers "
                "up to rounding. Pass the target it was trained for, not quantised."
            )
