"""Scaled-down drafter folders in the layouts of other projects, and what they compute, from their own tensor names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dlite.checkpoint import CONFIG, WEIGHTS
from dlite.target.hf import HFTarget
from tests.support import TINY_VOCAB, tiny_model

D, HEADS, KV, HEAD_DIM, FF, N, V = 32, 4, 2, 8, 24, 6, TINY_VOCAB
RANK, EPS, THETA = 5, 1e-6, 5e5
Change = Callable[[dict[str, Any], dict[str, Tensor]], None]
Tensors = dict[str, Tensor]


def target() -> HFTarget:
    """A tiny transformer with six layers."""
    return HFTarget(tiny_model("llama", context=200, num_hidden_layers=N), None, "tiny")


def decoder(layers: int) -> dict[str, Any]:
    """A Qwen3-style config as transformers writes it."""
    return {
        "architectures": ["?"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "dtype": "bfloat16", "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": D, "initializer_range": 0.02,
        "intermediate_size": FF, "layer_types": ["full_attention"] * layers, "max_position_embeddings": 200,
        "max_window_layers": 5, "model_type": "qwen3", "num_attention_heads": HEADS, "num_hidden_layers": layers,
        "num_key_value_heads": KV, "rms_norm_eps": EPS, "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
        "sliding_window": None, "tie_word_embeddings": False, "transformers_version": "5.10.2", "use_cache": True,
        "use_sliding_window": False, "vocab_size": V,
    }  # fmt: skip


def layer_shapes(wide: bool = False, qk_norm: bool = True) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer."""
    width = 2 * D if wide else D
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (HEADS * HEAD_DIM, width), "self_attn.k_proj.weight": (KV * HEAD_DIM, width),
        "self_attn.v_proj.weight": (KV * HEAD_DIM, width), "self_attn.o_proj.weight": (D, HEADS * HEAD_DIM),
        "mlp.gate_proj.weight": (FF, D), "mlp.up_proj.weight": (FF, D), "mlp.down_proj.weight": (D, FF),
        "input_layernorm.weight": (D,), "post_attention_layernorm.weight": (D,),
    }  # fmt: skip
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,)}
    return shapes | ({"hidden_norm.weight": (D,)} if wide else {})


def body_shapes(layers: int, taps: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a DFlash."""
    own = {f"layers.{i}.{name}": shape for i in range(layers) for name, shape in layer_shapes().items()}
    return own | {"norm.weight": (D,), "fc.weight": (D, taps * D), "hidden_norm.weight": (D,)}


def spark_shapes(head: str) -> dict[str, tuple[int, ...]]:
    """What a DSpark has more."""
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (V, RANK), "markov_head.markov_w2.weight": (V, RANK),
        "confidence_head.proj.weight": (1, D + RANK), "confidence_head.proj.bias": (1,),
    }  # fmt: skip
    if head == "gated":
        shapes |= {"markov_head.gate_proj.weight": (RANK, D + RANK), "markov_head.gate_proj.bias": (RANK,)}
    if head == "rnn":
        shapes |= {
            "markov_head.joint_proj.weight": (3 * RANK, 2 * RANK + D),
            "markov_head.joint_proj.bias": (3 * RANK,),
        }
    return shapes


def eagle_shapes(taps: int, qk_norm: bool = True) -> dict[str, tuple[int, ...]]:
    """The tensors of an EAGLE-3."""
    own = {f"layers.0.{name}": shape for name, shape in layer_shapes(wide=True, qk_norm=qk_norm).items()}
    return own | {"norm.weight": (D,), "fc.weight": (D, taps * D)}


def fill(shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Random tensors, lively enough that each matters."""
    generator = torch.Generator().manual_seed(7)
    return {k: 0.3 * torch.randn(s, generator=generator) + (len(s) == 1) for k, s in shapes.items()}


def copies(model: HFTarget, rows: Sequence[int] | None = None) -> Tensors:
    """What some folders repeat of the target."""
    head = model.output_weight()[0]
    head = head if rows is None else head[list(rows)]
    return {"embed_tokens.weight": model.embed(torch.arange(V)).clone(), "lm_head.weight": head.clone()}


def write(folder: Path, config: dict[str, Any], tensors: Tensors, change: Change | None = None) -> Path:
    """A folder, after ``change`` has been at it."""
    if change:
        change(config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: t.contiguous() for k, t in tensors.items()}, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


# --- what the published networks compute, from their descriptions: rows one by one, heads one by one ---


def rms(x: Tensor, scale: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean() + EPS) * scale


def turn(x: Tensor, position: int) -> Tensor:
    """RoPE of one head: entries j and j + d/2 turn together."""
    half = len(x) // 2
    angles = [position * THETA ** (-2 * j / len(x)) for j in range(half)]
    cos, sin = (torch.tensor([f(a) for a in angles]) for f in (math.cos, math.sin))
    low, high = x[:half], x[half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin])


def head_of(t: Tensors, at: str, kind: str, row: Tensor, h: int) -> Tensor:
    """One head of a projection, normalised where the folder has such a norm."""
    x = t[f"{at}self_attn.{kind}_proj.weight"][h * HEAD_DIM : (h + 1) * HEAD_DIM] @ row
    scale = t.get(f"{at}self_attn.{kind}_norm.weight")
    return x if scale is None else rms(x, scale)


def attend(t: Tensors, at: str, row: Tensor, position: int, seen: Sequence[tuple[Tensor, int]]) -> Tensor:
    """What a row gathers from the rows it sees, given with their positions: [D]."""
    mixed = []
    for h in range(HEADS):
        g = h // (HEADS // KV)
        query = turn(head_of(t, at, "q", row, h), position)
        scores = torch.stack([query @ turn(head_of(t, at, "k", r, g), p) for r, p in seen]) / math.sqrt(HEAD_DIM)
        values = torch.stack([head_of(t, at, "v", r, g) for r, _ in seen])
        mixed.append(scores.softmax(0) @ values)
    return t[f"{at}self_attn.o_proj.weight"] @ torch.cat(mixed)


def mlp(t: Tensors, at: str, row: Tensor) -> Tensor:
    gate, up = t[f"{at}mlp.gate_proj.weight"] @ row, t[f"{at}mlp.up_proj.weight"] @ row
    return t[f"{at}mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)


def block_hidden(t: Tensors, layers: int, taps: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
    """A DFlash block behind positions with taps [T,n,D]: every row sees all of them and the whole block."""
    start = len(taps)
    context = [(rms(t["fc.weight"] @ x.flatten(), t["hidden_norm.weight"]), p) for p, x in enumerate(taps)]
    rows = list(rows)
    for i in range(layers):
        at = f"layers.{i}."
        normed = [(rms(r, t[f"{at}input_layernorm.weight"]), start + j) for j, r in enumerate(rows)]
        rows = [r + attend(t, at, x, p, [*context, *normed]) for r, (x, p) in zip(rows, normed, strict=True)]
        rows = [r + mlp(t, at, rms(r, t[f"{at}post_attention_layernorm.weight"])) for r in rows]
    return [rms(r, t["norm.weight"]) for r in rows]


def markov_bias(t: Tensors, head: str, hidden: Sequence[Tensor], previous: Sequence[int]) -> list[Tensor]:
    """DSpark's bias on the logits of each draft."""
    state, found = torch.zeros(RANK), []
    for h, token in zip(hidden, previous, strict=True):
        word = t["markov_head.markov_w1.weight"][token]
        u = word
        if head == "gated":
            gate = t["markov_head.gate_proj.weight"] @ torch.cat([h, word]) + t["markov_head.gate_proj.bias"]
            u = torch.sigmoid(gate) * word
        if head == "rnn":
            joint = t["markov_head.joint_proj.weight"] @ torch.cat([state, word, h]) + t["markov_head.joint_proj.bias"]
            gate, candidate, out = joint[:RANK].sigmoid(), joint[RANK : 2 * RANK].tanh(), joint[2 * RANK :]
            state, u = gate * state + (1 - gate) * candidate, out.tanh()
        found.append(t["markov_head.markov_w2.weight"] @ u)
    return found


def eagle_hidden(
    t: Tensors, taps: Tensor, embed: Callable[[int], Tensor], tokens: Sequence[int], K: int
) -> list[Tensor]:
    """EAGLE-3: one layer over pairs of a position's features and the token behind it; its output is the next features.

    tokens are all committed ones, then the drafts that were chosen.
    """
    known, at, seen, found = len(taps), "layers.0.", [], []
    feature = taps[0]
    for p in range(known + K - 1):
        stream = t["fc.weight"] @ taps[p].flatten() if p < known else feature
        word = rms(embed(tokens[p + 1]), t[f"{at}input_layernorm.weight"])
        row = torch.cat([word, rms(stream, t[f"{at}hidden_norm.weight"])])
        seen.append((row, p))
        if p < known - 1:
            continue
        stream = stream + attend(t, at, row, p, seen)
        feature = stream + mlp(t, at, rms(stream, t[f"{at}post_attention_layernorm.weight"]))
        found.append(rms(feature, t["norm.weight"]))
    return found
