"""``dlite doctor``: one script through every implementation of a drafter, and the first tensor that differs by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dlite.checkpoint import check_copies
from dlite.checkpoint import load_drafter as load_folder
from dlite.drafters import shipped_folder
from dlite.errors import DliteError
from dlite.serve.diagnose import Finding, diagnose
from dlite.serve.golden import Golden, check_golden
from dlite.serve.replay import Make, Replayer, replayers
from dlite.target.base import Target


@dataclass(frozen=True)
class Checkup:
    """What one implementation showed: ``skipped`` why it was not asked, ``finding`` what differs, rounds compared."""

    name: str
    rounds: int = 0
    finding: Finding | None = None
    skipped: str | None = None

    @property
    def sentence(self) -> str:
        """In a line."""
        if self.skipped:
            return f"{self.name}: not asked, {self.skipped}"
        if self.finding:
            return f"{self.name}: {self.finding.fault.upper()}: {self.finding.text}"
        return f"{self.name}: agrees in {self.rounds} rounds"


def examine(
    golden: Golden,
    target: Target,
    make: Make,
    asked: Sequence[Replayer] | None = None,
    tolerance: float | None = None,
) -> list[Checkup]:
    """Play the fixture's script with every implementation that is here. Errors: ``DataError`` for another's fixture."""
    check_golden(golden, target, make())
    tolerance = tolerance or (1e-3 if target.dtype == torch.float32 else 5e-2)
    results = []
    for one in replayers() if asked is None else asked:
        reason = one.missing()
        if reason is not None:
            results.append(Checkup(one.name, skipped=reason))
            continue
        trace = one.replay(golden.script, target, make)
        results.append(Checkup(one.name, len(trace.tokens), diagnose(trace, golden, target, tolerance)))
    return results


def network_maker(name: str, target: Target) -> Make:
    """What makes fresh networks of a drafter folder. Errors: ``DliteError`` for a drafter without weights."""
    folder = shipped_folder(target) if name == "shipped" else Path(name)
    if not folder.is_dir():
        raise DliteError(
            f"there is no drafter folder {name}. Expected the folder of a trained drafter: one without weights has nothing "
            "that could fall out of step."
        )

    def make() -> Any:
        network, provenance = load_folder(folder, target.info)
        check_copies(provenance, target, network.config.draft_vocab)
        relay = getattr(network, "relay", None)
        if relay is not None:  # what a round hands to the next is not in a block of training
            relay.silence()
        return network.attach(target).to(target.device, target.dtype)

    return make


def to_json(results: Sequence[Checkup]) -> dict[str, Any]:
    """Plain values."""
    return {"healthy": all(one.finding is None for one in results), "checkups": [asdict(one) for one in results]}
