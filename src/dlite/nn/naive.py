"""Backbone, head and losses as plain loops over one block or row: what the batched ones must equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dlite.nn.backbone import Attention, Backbone, BackboneConfig, Layer, SwiGLU
from dlite.nn.heads import LowRankRNN

Rows = Sequence[Tensor]  # one [D] vector a row


def backbone(
    model: Backbone, queries: Rows, positions: Sequence[int], context: Rows, context_positions: Sequence[int]
) -> list[Tensor]:
    """Normalised hidden states of the query rows; the context is the same in every layer."""
    rows = list(queries)
    for layer in cast(Iterable[Layer], model.layers):
        normed = [rms_norm(layer.input_layernorm, x) for x in rows]
        seen = [*zip(context, context_positions, strict=True), *zip(normed, positions, strict=True)]
        mixed = [attend(layer.self_attn, model.config, x, at, seen) for x, at in zip(normed, positions, strict=True)]
        rows = [x + y for x, y in zip(rows, mixed, strict=True)]
        rows = [x + swiglu(layer.mlp, rms_norm(layer.post_attention_layernorm, x)) for x in rows]
    return [rms_norm(model.norm, x) for x in rows]


def attend(
    attention: Attention, config: BackboneConfig, row: Tensor, position: int, seen: Sequence[tuple[Tensor, int]]
) -> Tensor:
    """What one query row [D] gathers from the rows it sees, given with their positions."""
    d, share = config.head_dim, config.num_heads // config.num_kv_heads
    heads = []
    for h in range(config.num_heads):
        g = h // share  # the key-value head this query head reads
        query = rotate(head_norm(attention.q_norm, part(attention.q_proj, row, h, d)), position, config.rope_theta)
        scores, values = [], []
        for other, at in seen:
            key = rotate(head_norm(attention.k_norm, part(attention.k_proj, other, g, d)), at, config.rope_theta)
            scores.append(sum(query[j] * key[j] for j in range(d)) / math.sqrt(d))
            values.append(part(attention.v_proj, other, g, d))
        weights = [torch.exp(torch.as_tensor(s)) for s in scores]
        total = torch.stack(weights).sum()
        heads.append(torch.stack([w / total * v for w, v in zip(weights, values, strict=True)]).sum(0))
    return attention.o_proj.weight @ torch.cat(heads)


def rotate(x: Tensor, position: int, theta: float) -> Tensor:
    """RoPE of one head [d]: entries j and j + d/2 turn together by position * theta^(-2j/d)."""
    half = len(x) // 2
    low, high = [], []
    for j in range(half):
        angle = position * theta ** (-2 * j / len(x))
        low.append(x[j] * math.cos(angle) - x[j + half] * math.sin(angle))
        high.append(x[j + half] * math.cos(angle) + x[j] * math.sin(angle))
    return torch.stack(low + high)


def rms_norm(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """x over its root mean square, times the scale."""
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    return x / torch.sqrt((x * x).sum() / len(x) + eps) * norm.weight


def head_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """RMSNorm of one head, or nothing in a backbone without query-key norms."""
    return rms_norm(norm, x) if isinstance(norm, nn.RMSNorm) else x


def part(linear: nn.Linear, x: Tensor, head: int, size: int) -> Tensor:
    """One head [d] of a projection."""
    return linear.weight[head * size : (head + 1) * size] @ x


def swiglu(mlp: SwiGLU, x: Tensor) -> Tensor:
    """down(silu(gate x) * up x)."""
    gate, up = mlp.gate_proj.weight @ x, mlp.up_proj.weight @ x
    return mlp.down_proj.weight @ (gate / (1 + torch.exp(-gate)) * up)


def head(model: LowRankRNN, hidden: Rows, previous: Sequence[int]) -> list[Tensor]:
    """Logits [V] of each draft: the state reads the tokens alone, the merge adds the hidden row."""
    state = torch.zeros(model.rank, dtype=model.output_proj.weight.dtype)
    logits = []
    for h, token in zip(hidden, previous, strict=True):
        both = torch.cat([state, model.prev_token_embedding.weight[token]])
        mixed = model.state_proj.weight @ both + model.state_proj.bias
        gate, candidate = 1 / (1 + torch.exp(-mixed[: model.rank])), torch.tanh(mixed[model.rank :])
        state = gate * state + (1 - gate) * candidate
        merged = model.state_hidden_mlp.weight @ torch.cat([state, h]) + model.state_hidden_mlp.bias
        logits.append(model.output_proj.weight @ merged)
    return logits


def position_weights(K: int, gamma: float, counted: Sequence[int]) -> list[list[float]]:
    """exp(-(i-1)/gamma) for draft i = 1..K while it counts."""
    return [[math.exp(-(i - 1) / gamma) if i <= count else 0.0 for i in range(1, K + 1)] for count in counted]


def softmax(row: Tensor) -> list[Tensor]:
    """The distribution of one row of logits [V]."""
    weights = [torch.exp(x) for x in row]
    total = torch.stack(weights).sum()
    return [w / total for w in weights]


def cross_entropy(row: Tensor, label: int) -> Tensor:
    """- log q(label)."""
    return -torch.log(softmax(row)[label])


def forward_kl(row: Tensor, target_row: Tensor) -> Tensor:
    """sum_x p(x) log(p(x) / q(x))."""
    p, q = softmax(target_row), softmax(row)
    return torch.stack([a * torch.log(a / b) for a, b in zip(p, q, strict=True)]).sum()


def l1_distance(row: Tensor, target_row: Tensor) -> Tensor:
    """sum_x |p(x) - q(x)|, without the factor 1/2."""
    p, q = softmax(target_row), softmax(row)
    return torch.stack([torch.abs(a - b) for a, b in zip(p, q, strict=True)]).sum()


def acceptance_entropy(confidence: Tensor, row: Tensor, target_row: Tensor) -> Tensor:
    """Binary cross-entropy of a confidence, given as a logit, against sum_x min(p(x), q(x)); q is held fixed."""
    p, q = softmax(target_row), softmax(row.detach())
    accepted = torch.stack([torch.minimum(a, b) for a, b in zip(p, q, strict=True)]).sum()
    chance = 1 / (1 + torch.exp(-confidence))
    return -(accepted * torch.log(chance) + (1 - accepted) * torch.log(1 - chance))


def candidate_entropy(scores: Tensor, rows: Sequence[int], label: int) -> Tensor:
    """- log of the label's share among the candidates, 0 where it is none of them."""
    shares = dict(zip(rows, softmax(scores), strict=True))
    return -torch.log(shares[label]) if label in shares else scores.new_zeros(())
