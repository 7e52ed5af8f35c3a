"""Seconds of training on the toy target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlite.checkpoint import load_drafter
from dlite.drafters import network_class
from dlite.train.held_out import held_out_tau
from dlite.train.stages import stage_network
from tests.features.support import TOY
from tests.train import support
from tests.train.support import recipe, run, talks

PROMPTS = [c.ids[:5] for c in talks()]


def learns(drafter: dict[str, Any], out: Path, *, losses: dict[str, float] | None = None, steps: int = 100) -> None:
    """The loss falls by a fifth and more, and tau rises by half a token above that of the weights it began with."""
    stage = {"name": "only", "steps": steps, "losses": losses or {"ce": 1.0}, "lr": 1e-2}
    plan = recipe([stage], drafter=drafter, batch_sequences=4, eval_every=steps)
    trained, _ = load_drafter(run(plan, out), TOY.info)
    values = [row["loss"] for row in support.losses(out)]
    assert sum(values[-5:]) < 0.8 * sum(values[:5])
    fresh = stage_network(network_class(plan.drafter.kind), trained.config, plan.stages[0], TOY, None, None, 0)
    before = held_out_tau(TOY, fresh.freeze(), PROMPTS, 12)["tau"]
    assert held_out_tau(TOY, trained.attach(TOY).freeze(), PROMPTS, 12)["tau"] > before + 0.5
