"""What a run says of itself: ``recipe.json``, ``losses.jsonl``, ``tau.jsonl`` and TensorBoard logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dlite.config import Recipe

LOGS = ("losses.jsonl", "tau.jsonl")


class Record:
    """The logs in a run folder; of several processes only one ``writes``."""

    def __init__(self, out: Path, *, writes: bool) -> None:
        self.out, self.writes = out, writes
        out.mkdir(parents=True, exist_ok=True)
        self.board = tensorboard(out / "tensorboard") if writes else None

    def begin(self, recipe: Recipe) -> None:
        """A new run: its recipe, and nothing of a run before."""
        if not self.writes:
            return
        (self.out / "recipe.json").write_text(json.dumps(recipe.model_dump(mode="json"), indent=2) + "\n")
        for name in LOGS:
            (self.out / name).unlink(missing_ok=True)

    def go_on(self, step: int) -> None:
        """A run resumed behind ``step``: what was logged after it will be logged again."""
        if self.writes:
            for name in LOGS:
                _keep_steps(self.out / name, step)

    def losses(
        self, step: int, stage: str, loss: float, parts: dict[str, float], lr: float, blocks: int, seconds: float
    ) -> None:
        """One optimizer step."""
        if not self.writes:
            return
        row = {"step": step, "stage": stage, "loss": loss, **parts, "lr": lr, "blocks": blocks}
        _append(self.out / "losses.jsonl", row | {"seconds": round(seconds, 3)})
        if self.board:
            for key in ("loss", *parts, "lr"):
                self.board.add_scalar(f"{stage}/{key}", row[key], step)

    def tau(self, step: int, stage: str, result: dict[str, Any]) -> None:
        """What ``held_out_tau`` found after ``step`` and the blocks seen by then."""
        if not self.writes:
            return
        seen = sum(json.loads(line)["blocks"] for line in (self.out / "losses.jsonl").read_text().splitlines())
        _keep_steps(self.out / "tau.jsonl", step - 1)  # a finished run that is started again says it once
        _append(self.out / "tau.jsonl", {"step": step, "stage": stage, "blocks": seen, **result})
        if self.board:
            self.board.add_scalar("held-out/tau", result["tau"], step)


def tensorboard(folder: Path) -> Any:
    """A TensorBoard writer, or None where TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _keep_steps(path: Path, last: int) -> None:
    """Drop what was logged after the step that is resumed from, torn lines included."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= last:
                kept.append(line)
        except (json.JSONDecodeError, KeyError):
            continue
    part = path.with_suffix(".part")
    part.write_text("".join(line + "\n" for line in kept))
    part.replace(path)
