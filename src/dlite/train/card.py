"""The model card beside a trained drafter: what made it, from what, at what cost, and how well it drafted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dlite.config import Recipe
from dlite.provenance import provenance
from dlite.target.base import TargetInfo


def write_card(folder: Path, run: Path, drafter: Any, info: TargetInfo, recipe: Recipe) -> None:
    """Write README.md and training.json into a drafter's folder, from what its run logged."""
    losses, taus = _lines(run / "losses.jsonl"), _lines(run / "tau.jsonl")
    record = {
        "made": provenance(sys.argv),
        "recipe": recipe.model_dump(mode="json"),
        "parameters": sum(p.numel() for p in drafter.parameters()),
        "steps": len(losses),
        "anchor_views": sum(r["blocks"] for r in losses),
        "seconds": round(sum(r["seconds"] for r in losses)),
        "final_loss": losses[-1]["loss"] if losses else None,
        "held_out": taus,
    }
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / "README.md").write_text(_card(record, drafter, info))


def _card(record: dict[str, Any], drafter: Any, info: TargetInfo) -> str:
    config, made = drafter.config, record["made"]
    words = "the whole vocabulary"
    if config.draft_vocab is not None:
        words = f"{len(config.draft_vocab)} of {config.vocab_size} tokens"
    rows = "\n".join(map(_row, record["held_out"]))
    size = f"{config.backbone.num_layers} layers, {record['parameters'] / 1e6:.1f}M parameters"
    summary = " ".join((type(drafter).__doc__ or "").split("\n\n")[0].split())
    return f"""# {drafter.name} drafter for {info.name}

{summary}

| | |
| --- | --- |
| target | {info.name} ({info.num_layers} layers, hidden size {info.hidden_size}) |
| network | {size}, {config.K} drafts a round from {words} |
| taps | {", ".join(map(str, config.taps))} |
| draft state | {drafter.state_bytes(1024)} bytes behind 1K tokens, {drafter.state_bytes(8192)} behind 8K |
| training | {record["steps"]} steps, {record["anchor_views"]} anchor views, {record["seconds"] / 60:.0f} minutes |
| command | `{" ".join(made["argv"])}` |
| made with | dlite {made["dlite"]}, torch {made["torch"]}, {made["cpu"]}, {made["threads"]} thread(s), commit {made["commit"]} |

## tau on held-out prompts while it trained

Greedy, K = {config.K}, {record["recipe"]["train"]["eval_tokens"]} new tokens a prompt, looping answers left out.

| step | stage | anchor views | tau | acceptance by position |
| --- | --- | --- | --- | --- |
{rows}
"""


def _row(entry: dict[str, Any]) -> str:
    shares = ", ".join(f"{share:.2f}" for share in entry["acceptance_by_position"])
    return f"| {entry['step']} | {entry['stage']} | {entry['blocks']} | {entry['tau']:.2f} | {shares} |"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
