"""The recursive layer as loops over one block: what the batched one must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dlite.nn import naive
from dlite.nn.recursive import MergedEntry, Recursive, WideEntry

Pair = tuple[Tensor, Tensor]  # a word and the features before it, [D] each


def steps(
    model: Recursive, past: Sequence[tuple[Pair, int]], features: Tensor, words: naive.Rows, at: int
) -> list[Tensor]:
    """The layer's output [D] at every step: ``past`` entries with their positions, ``features`` of the pivot at ``at``."""
    layer = model.layer
    seen = [(enter(layer.entry, word, before)[1], position) for (word, before), position in past]
    outputs = []
    for position, word in enumerate(words, start=at):
        stream, row = enter(layer.entry, word, features)
        seen.append((row, position))
        stream = stream + naive.attend(layer.self_attn, model.config, row, position, seen)
        features = stream + naive.swiglu(layer.mlp, naive.rms_norm(layer.post_attention_layernorm, stream))
        outputs.append(features)
    return outputs


def enter(entry: WideEntry | MergedEntry, word: Tensor, features: Tensor) -> Pair:
    """The residual stream of one entry and what the attention reads."""
    word, normed = naive.rms_norm(entry.word_norm, word), naive.rms_norm(entry.feature_norm, features)
    if isinstance(entry, WideEntry):
        return features, torch.cat([word, normed])
    stream = entry.merge.weight @ torch.cat([normed, word])
    return stream, naive.rms_norm(entry.input_layernorm, stream)
