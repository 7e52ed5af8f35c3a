"""The parallel transformer every block drafter shares: query rows attend to injected context and to each other.

The context never enters the residual stream. In each layer it is projected by the same key and value
matrices as the queries, so a round costs K+1 rows whatever the context (DLite, arXiv 2610.23787, section 3).
Context comes in two forms: ``Context`` rows that belong to one block, and a ``Past`` of verified positions, whose keys
and values are made once and shared, between blocks in training and between rounds in decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class BackboneConfig:
    """Sizes of the backbone; by default a drafter takes the target's own width and head layout."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    qk_norm: bool = True


Tables = tuple[Tensor, Tensor]  # cosines and sines


@dataclass(frozen=True)
class Context:
    """Rows that the queries may read but that are never updated.

    rows [N,C,D]   positions [C] or [N,C]   mask [N,C], True where a row exists (None: all exist)
    """

    rows: Tensor
    positions: Tensor
    mask: Tensor | None = None


class Past(Protocol):
    """Verified positions that the queries may read: ``mask`` [N,W] is True where one exists."""

    @property
    def mask(self) -> Tensor:
        """[N,W]."""

    def keys_values(self, index: int, attention: Attention) -> tuple[Tensor, Tensor]:
        """Keys and values of layer ``index`` for the N blocks, rotary embedding applied: [N,heads,W,d] each."""


class Backbone(nn.Module):
    """Pre-norm layers without a causal mask, RoPE, grouped-query attention, SwiGLU and a final RMSNorm."""

    def __init__(self, config: BackboneConfig, layer: Callable[[BackboneConfig], Layer] | None = None) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList((layer or Layer)(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, queries: Tensor, positions: Tensor, context: Context | None, past: Past | None = None) -> Tensor:
        """Normalised hidden states of the query rows.

        queries [N,Q,D]   positions [Q] or [N,Q]   returns [N,Q,D]
        """
        query_rope = rope(positions, self.config.head_dim, self.config.rope_theta, queries.dtype)
        rows, context_rope = None, query_rope
        if context is not None:
            rows = context.rows
            context_rope = rope(context.positions, self.config.head_dim, self.config.rope_theta, queries.dtype)
        mask = _visible(queries, context, past)
        for index, layer in enumerate(self.layers):
            known = None if past is None else past.keys_values(index, layer.self_attn)  # type: ignore[arg-type]
            queries = layer(queries, rows, query_rope, context_rope, mask, known)
        return self.norm(queries)  # type: ignore[no-any-return]


def _visible(queries: Tensor, context: Context | None, past: Past | None) -> Tensor | None:
    """[N,1,1,W+C+Q], True where a key exists; None where all do."""
    if past is None and (context is None or context.mask is None):
        return None
    parts = [] if past is None else [past.mask]
    for rows, mask in ((context.rows, context.mask) if context else (None, None), (queries, None)):
        if rows is not None:
            parts.append(torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device) if mask is None else mask)
    return torch.cat(parts, dim=1)[:, None, None, :]


class Layer(nn.Module):
    """One transformer layer over the query rows."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = SwiGLU(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self,
        rows: Tensor,
        context: Tensor | None,
        query_rope: Tables,
        context_rope: Tables,
        mask: Tensor | None,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        rows = rows + self.self_attn(self.input_layernorm(rows), context, query_rope, context_rope, mask, past)
        return rows + self.mlp(self.post_attention_layernorm(rows))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Queries from the block; keys and values from [past ; context ; block], with q/k norm.

    ``width`` is that of the rows it reads, the hidden size unless given.
    """

    def __init__(self, config: BackboneConfig, width: int | None = None) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        width = width or config.hidden_size
        self.q_proj = nn.Linear(width, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(width, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(width, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        norm = config.qk_norm
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if norm else nn.Identity()
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps) if norm else nn.Identity()

    def forward(
        self,
        rows: Tensor,
        context: Tensor | None,
        query_rope: Tables,
        context_rope: Tables,
        mask: Tensor | None,
        past: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        n, q, _ = rows.shape
        everything = rows if context is None else torch.cat([context, rows], dim=1)
        queries = rotate(self.queries(rows), query_rope)
        keys, values = self.project(everything)
        if context is None:
            keys = rotate(keys, query_rope)
        else:
            c = context.shape[1]
            keys = torch.cat([rotate(keys[:, :, :c], context_rope), rotate(keys[:, :, c:], query_rope)], dim=2)
        if past is not None:
            keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
        mixed = grouped_attention(queries, keys, values, mask)
        return self.o_proj(mixed.transpose(1, 2).reshape(n, q, -1))  # type: ignore[no-any-return]

    def queries(self, rows: Tensor) -> Tensor:
        """Queries, normalised, not yet rotated: rows [N,Q,D] -> [N,H,Q,d]."""
        n, q, _ = rows.shape
        return self.q_norm(self.q_proj(rows).view(n, q, self.num_heads, self.head_dim)).transpose(1, 2)  # type: ignore[no-any-return]

    def project(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (normalised, not yet rotated) and values: rows [N,C,D] -> [N,heads,C,d] each."""
        n = len(rows)
        keys = self.k_norm(self.k_proj(rows).view(n, -1, self.num_kv_heads, self.head_dim)).transpose(1, 2)
        return keys, self.v_proj(rows).view(n, -1, self.num_kv_heads, self.head_dim).transpose(1, 2)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


def grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention without repeating keys: the heads of a group become extra query rows.

    queries [N,H,Q,d]   keys, values [N,G,S,d]   mask broadcastable to [N,1,Q,S], True = visible   returns [N,H,Q,d]
    """
    n, heads, q, dim = queries.shape
    groups = keys.shape[1]
    share = heads // groups
    if mask is not None and mask.shape[2] != 1:
        mask = mask.repeat(1, 1, share, 1)
    mixed = F.scaled_dot_product_attention(queries.reshape(n, groups, share * q, dim), keys, values, attn_mask=mask)
    return mixed.reshape(n, heads, q, dim)


def rope(positions: Tensor, dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine tables, fp32 inside: positions [S] or [N,S] -> [1 or N,1,S,d] each."""
    frequencies = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angles = positions.float().unsqueeze(-1) * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    angles = angles[None, None] if angles.dim() == 2 else angles[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding, half-split convention: x [N,H,S,d]."""
    cos, sin = tables
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
