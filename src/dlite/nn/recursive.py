"""One decoder layer fed with its own output, token by token.

Entry t pairs the features of position t with the token at t+1 and predicts the token at t+2. The features of verified
positions come from the target; behind them, the layer's own output takes their place. Two ways to make an entry:
EAGLE-3's (2503.01840) and that of DeepSeek's multi-token predictor (DeepSeek-V3, 2412.19437).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dlite.nn.backbone import Attention, BackboneConfig, Past, SwiGLU, rope, rotate


class WideEntry(nn.Module):
    """EAGLE-3: the attention reads [norm(E(x)); norm(g)], 2D wide; the residual stream is g."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.width = 2 * config.hidden_size
        self.word_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.feature_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, words: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """words, features [...,D] -> the stream [...,D] and what the attention reads [...,width]."""
        return features, torch.cat([self.word_norm(words), self.feature_norm(features)], -1)


class MergedEntry(nn.Module):
    """DeepSeek: the residual stream is M [norm(h); norm(E(x))]; the attention reads its norm."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.width = D = config.hidden_size
        self.feature_norm = nn.RMSNorm(D, eps=config.rms_norm_eps)
        self.word_norm = nn.RMSNorm(D, eps=config.rms_norm_eps)
        self.merge = nn.Linear(2 * D, D, bias=False)
        self.input_layernorm = nn.RMSNorm(D, eps=config.rms_norm_eps)

    def forward(self, words: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """words, features [...,D] -> the stream [...,D] and what the attention reads [...,width]."""
        stream = self.merge(torch.cat([self.feature_norm(features), self.word_norm(words)], -1))
        return stream, self.input_layernorm(stream)


class RecursiveLayer(nn.Module):
    """A pre-norm decoder layer over such entries."""

    def __init__(self, config: BackboneConfig, entry: WideEntry | MergedEntry) -> None:
        super().__init__()
        self.entry = entry
        self.self_attn = Attention(config, entry.width)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)

    def finish(self, stream: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output from the stream [N,1,D] and what the heads gathered [N,H,1,d]: [N,1,D]."""
        stream = stream + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return stream + self.mlp(self.post_attention_layernorm(stream))  # type: ignore[no-any-return]


class Recursive(nn.Module):
    """The layer and the norm before the output matrix."""

    def __init__(self, config: BackboneConfig, entry: WideEntry | MergedEntry) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([RecursiveLayer(config, entry)])
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    @property
    def layer(self) -> RecursiveLayer:
        """The only one."""
        return self.layers[0]  # type: ignore[return-value]


class Steps:
    """The steps of one round over N rows. Their keys and values end with it; rejected drafts leave nothing behind.

    ``positions`` [N], or [1] for all: where the first entry stands.
    """

    def __init__(self, body: Recursive, past: Past | None, positions: Tensor) -> None:
        self.layer, self.config, self.positions = body.layer, body.config, positions
        self.own: list[tuple[Tensor, Tensor]] = []
        self.past = None if past is None else past.keys_values(0, body.layer.self_attn)
        self.mask = None if past is None else past.mask

    def take(self, words: Tensor, features: Tensor) -> Tensor:
        """The next entry: words, features [N,D] -> the layer's output, which is the features of the one after, [N,D]."""
        attention, config = self.layer.self_attn, self.config
        stream, rows = self.layer.entry(words[:, None], features[:, None])
        tables = rope(self.positions[:, None] + len(self.own), config.head_dim, config.rope_theta, rows.dtype)
        queries = rotate(attention.queries(rows), tables)
        keys, values = attention.project(rows)
        self.own.append((rotate(keys, tables), values))
        own = torch.cat([k for k, _ in self.own], 2), torch.cat([v for _, v in self.own], 2)
        return self.layer.finish(stream, joint_attention(queries, own, self.past, self.mask))[:, 0]


def joint_attention(
    queries: Tensor, own: tuple[Tensor, Tensor], past: tuple[Tensor, Tensor] | None, mask: Tensor | None
) -> Tensor:
    """One softmax over the past and a round's own rows, which need not be copied together at every step.

    queries [N,H,1,d]   own keys and values [N,G,k,d], all visible   past [N,G,W,d] each, where mask [N,W] is True
    returns [N,H,1,d]
    """
    n, heads, _, dim = queries.shape
    asked = queries.reshape(n, own[0].shape[1], -1, dim) * dim**-0.5
    scores = asked @ own[0].transpose(2, 3)
    W = 0
    if past is not None and mask is not None:
        W = mask.shape[1]
        before = (asked @ past[0].transpose(2, 3)).masked_fill(~mask[:, None, None], -torch.inf)
        scores = torch.cat([before, scores], -1)
    weights = scores.float().softmax(-1).to(own[1])
    mixed: Tensor = weights[..., W:] @ own[1]
    if past is not None:
        mixed = mixed + weights[..., :W] @ past[1]
    return mixed.reshape(n, heads, 1, dim)
