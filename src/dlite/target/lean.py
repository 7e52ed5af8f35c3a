"""The decoder pass of Llama-like models with as few operator calls as it takes.

On a CPU a decoding pass of a small model is a few hundred small operators; transformers' modules spend as long
between the matrix products as in them. This walks the same frozen weights in the same order. Models it does not know
run through transformers' own modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dlite.nn.backbone import grouped_attention
from dlite.nn.cache import RaggedCache
from dlite.nn.cpu import FastRMSNorm, PackedLinear, Projection

KNOWN = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


@dataclass(frozen=True)
class LeanLayer:
    """One layer's frozen parts; q_norm and k_norm are absent in Llama and Qwen2."""

    norm: FastRMSNorm
    qkv: PackedLinear
    q_norm: FastRMSNorm | None
    k_norm: FastRMSNorm | None
    out: PackedLinear
    mlp_norm: FastRMSNorm
    gate_up: PackedLinear
    down: PackedLinear


class LeanDecoder:
    """Runs the layers of a frozen model."""

    def __init__(self, model: Any) -> None:
        config, decoder = model.config, model.get_decoder()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = decoder.layers[0].self_attn.head_dim
        self.embed, self.rotary, self.norm = decoder.embed_tokens, decoder.rotary_emb, decoder.norm
        self.layers = [_lean_layer(layer) for layer in decoder.layers]

    @staticmethod
    def fits(model: Any, windows: dict[str, int | None]) -> bool:
        """True for a known model type whose layers were frozen, with full attention and a SiLU MLP."""
        if type(model).__name__ not in KNOWN or any(windows.values()) or model.config.hidden_act != "silu":
            return False
        layer = model.get_decoder().layers[0]
        return isinstance(layer.self_attn.q_proj, Projection) and isinstance(layer.input_layernorm, FastRMSNorm)

    def forward(
        self, tokens: Tensor, positions: Tensor, cache: RaggedCache, mask: Tensor | None, taps: set[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """(normalised hidden states [B,R,D], raw outputs of the layers in ``taps``): tokens, positions [B,R]."""
        hidden = self.embed(tokens)
        cos, sin = self.rotary(hidden, positions)
        half = self.head_dim // 2
        cos, sin = cos[:, None], sin[:, None].clone()
        sin[..., :half].neg_()  # rotate-half as a swap of halves with the sign in the table
        captured = {}
        for index, layer in enumerate(self.layers):
            hidden = hidden + self._attend(layer, index, layer.norm(hidden), cos, sin, cache, mask)
            gate, up = layer.gate_up(layer.mlp_norm(hidden)).chunk(2, -1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
            if index in taps:
                captured[index] = hidden
        return self.norm(hidden), captured

    def _attend(
        self,
        layer: LeanLayer,
        index: int,
        rows: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: RaggedCache,
        mask: Tensor | None,
    ) -> Tensor:
        batch, new, _ = rows.shape
        parts = layer.qkv(rows).view(batch, new, -1, self.head_dim).transpose(1, 2)
        turned = parts[:, : self.heads + self.kv_heads]
        if layer.q_norm is not None and layer.k_norm is not None:
            turned = torch.cat([layer.q_norm(turned[:, : self.heads]), layer.k_norm(turned[:, self.heads :])], 1)
        half = self.head_dim // 2
        swapped = torch.cat([turned[..., half:], turned[..., :half]], -1)
        turned = torch.addcmul(turned * cos, swapped, sin)
        keys, values = cache.update(turned[:, self.heads :], parts[:, self.heads + self.kv_heads :], index)
        mixed = grouped_attention(turned[:, : self.heads], keys, values, mask)
        return layer.out(mixed.transpose(1, 2).reshape(batch, new, -1))  # type: ignore[no-any-return]


def _lean_layer(layer: Any) -> LeanLayer:
    attention = layer.self_attn
    return LeanLayer(
        norm=layer.input_layernorm,
        qkv=attention.q_proj.fused.product,
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
        out=attention.o_proj,
        mlp_norm=layer.post_attention_layernorm,
        gate_up=layer.mlp.gate_proj.fused.product,
        down=layer.mlp.down_proj,
    )
