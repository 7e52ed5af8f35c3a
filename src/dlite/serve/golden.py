"""Golden fixtures: a script, what training code made of it, and what the usual faults would have made of it, in one file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.errors import DataError
from dlite.serve.replay import Make, Training
from dlite.serve.trace import Script, Trace
from dlite.target.base import Target

FORMAT = "dlite-golden-1"
PLACES = {"layers before": -1, "layers": 0, "layers after": 1}  # hint -> position, counted from the pivot


@dataclass(frozen=True)
class Facts:
    """What a fixture was made with; another target or drafter cannot be held against it."""

    target: str
    tokenizer_hash: str
    drafter: str
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Golden:
    """A script, the trace of training code, and hints: tensors that a fault would show in place of the right ones.

    hints: "layers", "layers before" and "layers after" [B,N,D], raw outputs of every layer at the pivot, before and
    after it; "normed" [B,D], the last behind the final norm; for DLite, "context: NAME" [B,n,D].
    """

    facts: Facts
    script: Script
    trace: Trace
    hints: dict[str, Tensor]


def make_golden(target: Target, make: Make, prompt: Sequence[int], rounds: int = 8) -> Golden:
    """Let the target answer a prompt greedily and training code go through the rounds. Errors: ``DataError``."""
    network = make()
    script = _script(target, tuple(prompt), network.max_drafts, rounds)
    trace = Training().replay(script, target, make)
    facts = Facts(target.info.name, target.info.tokenizer_hash, network.name, tuple(network.taps))
    return Golden(facts, script, trace, {**_layers(target, script), **_contexts(network, target, trace)})


def save_golden(golden: Golden, path: Path) -> None:
    """Write a fixture."""
    script, facts = golden.script, golden.facts
    told = {
        "format": FORMAT, "target": facts.target, "tokenizer_hash": facts.tokenizer_hash, "drafter": facts.drafter,
        "taps": facts.taps, "ids": script.ids, "prompt": script.prompt, "anchors": script.anchors, "K": script.K,
    }  # fmt: skip
    tensors = {f"trace.{name}": x.contiguous().clone() for name, x in golden.trace.tensors()}
    tensors |= {f"hint.{name}": x.contiguous().clone() for name, x in golden.hints.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={"golden": json.dumps(told)})


def load_golden(path: Path) -> Golden:
    """Read a fixture. Errors: ``DataError``."""
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads((file.metadata() or {}).get("golden", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}). Expected a fixture made by dlite doctor --make.") from None
    if told.get("format") != FORMAT:
        raise DataError(f"{path} is no {FORMAT} file. Expected a fixture made by dlite doctor --make. Make it again.")
    parts: dict[str, dict[str, Tensor]] = {"trace": {}, "hint": {}}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = tensor
    return Golden(
        Facts(told["target"], told["tokenizer_hash"], told["drafter"], tuple(told["taps"])),
        Script(tuple(told["ids"]), told["prompt"], tuple(told["anchors"]), told["K"]),
        Trace(**parts["trace"]),  # type: ignore[arg-type]
        parts["hint"],
    )


def check_golden(golden: Golden, target: Target, network: Any) -> None:
    """Refuse a fixture of another target or drafter. Errors: ``DataError``."""
    facts = golden.facts
    for what, made, here in (
        ("tokenizer hash", facts.tokenizer_hash, target.info.tokenizer_hash),
        ("drafter kind", facts.drafter, network.name),
        ("taps", facts.taps, tuple(network.taps)),
        ("K", golden.script.K, network.max_drafts),
    ):
        if made != here:
            raise DataError(
                f"the fixture was made for {facts.target} with {what} {made}; here it is {here}. Expected the same. Give the "
                "target and drafter it was made with, or make one: dlite doctor --make FILE"
            )


def _script(target: Target, prompt: tuple[int, ...], K: int, rounds: int) -> Script:
    """Rounds that accept 0, 1, 2, ... K and again 0 drafts, so that the pivot is every row of a verification."""
    anchors = [len(prompt)]
    for round_ in range(rounds - 1):
        anchors.append(anchors[-1] + 1 + round_ % (K + 1))
    wanted = anchors[-1] + K + 1 - len(prompt)
    if len(prompt) < 2 or len(prompt) + wanted + K + 1 > target.info.context_length:
        raise DataError(
            f"a prompt of {len(prompt)} tokens does not fit {rounds} rounds of {K} drafts into a context of "
            f"{target.info.context_length}. Expected 2 tokens or more, with room for {wanted + K + 1} behind them."
        )
    engine = Engine(target, NoDrafter(), max_batch=1)
    number = engine.submit(Request(prompt, wanted, stop_ids=frozenset()))
    engine.run()
    return Script((*prompt, *engine.result(number).token_ids), len(prompt), tuple(anchors), K)


def _layers(target: Target, script: Script) -> dict[str, Tensor]:
    """Every layer's output around the pivots, and the last one's behind the final norm."""
    layers = tuple(range(target.info.num_layers))
    cache = target.new_cache(1, len(script.ids))
    taps = target.forward(torch.tensor([script.ids]), cache, 0, layers, "taps").taps[0].detach()
    found = {
        name: taps[[max(0, a - 1 + place) for a in script.anchors]].float().cpu() for name, place in PLACES.items()
    }
    last = taps[[a - 1 for a in script.anchors], -1]
    return {**found, "normed": target.final_norm(last).detach().float().cpu()}


@torch.no_grad()
def _contexts(network: Any, target: Target, trace: Trace) -> dict[str, Tensor]:
    """A DLite's context rows as they would be with a part of them left out."""
    if network.name != "dlite" or network.config.join != "sequence" or trace.taps is None:
        return {}
    depth, norm = network.layer_depth_embedding.weight[list(network.taps)], network.context_norm
    raw = trace.taps.to(depth.device, depth.dtype)
    normed = torch.cat([raw[:, :-1], target.final_norm(raw[:, -1:]).to(depth.dtype)], 1)
    used, other = (raw, normed) if network.config.last_tap == "raw" else (normed, raw)
    found = {
        "depth embedding": norm(used),
        "context norm": used + depth,
        "depth embedding and context norm": used,
        "tap norm": norm(other + depth),
    }
    return {f"context: {name}": rows.float().cpu() for name, rows in found.items()}
