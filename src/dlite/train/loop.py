"""A run: stage after stage, step after step, with one resume counter and the real tau while it trains.

A run folder holds ``recipe.json``, ``losses.jsonl``, ``tau.jsonl``, ``state.pt`` (everything needed to go on),
TensorBoard logs and ``drafter/``, the drafter so far (with its card, at the end). Killed at any moment and started
again, a run repeats the steps after its last save and gives the same losses.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError

from dlite.checkpoint import save_drafter
from dlite.config import Recipe, StageRecipe
from dlite.drafters import network_class
from dlite.errors import ConfigError, DataError, DliteError
from dlite.target.base import Target
from dlite.train.calibrate import calibrate
from dlite.train.card import write_card
from dlite.train.held_out import held_out_tau
from dlite.train.record import Record
from dlite.train.schedule import lr_factor, stage_ends
from dlite.train.source import Source
from dlite.train.stages import stage_network, teacher_config
from dlite.train.state import State, read_state, write_state
from dlite.train.step import Gradient, Learner


@dataclass(frozen=True)
class Progress:
    """What a progress bar shows."""

    stage: str
    step: int
    steps: int
    loss: float
    blocks_per_second: float
    tau: float | None


def train(
    recipe: Recipe,
    config: Any,
    target: Target,
    source: Source,
    out: Path,
    *,
    held_out: Sequence[tuple[int, ...]] = (),
    init: Any = None,
    report: Callable[[Progress], None] | None = None,
) -> Path:
    """Run every stage of a recipe; returns the folder of the finished drafter. Resumes what ``out`` holds.

    ``init`` is a trained drafter of the same shape to start from; its first stage then must not train a teacher.
    """
    if init is not None and recipe.stages[0].window:
        raise ConfigError(
            "a run from a trained drafter cannot begin with a teacher stage. Leave out --init or that stage."
        )
    run = _Run(recipe, config, target, source, out, held_out, report)
    run.student = None if init is None else init.attach(target)
    learner = run.begin()
    while run.step < run.total:
        learner = run.one_step(learner)
    run.save(learner)
    run.evaluate(learner)
    return run.publish(learner)


class _Run:
    """What outlives a stage: the counter, the finished teacher and student, the folder."""

    def __init__(
        self,
        recipe: Recipe,
        config: Any,
        target: Target,
        source: Source,
        out: Path,
        held_out: Sequence[tuple[int, ...]],
        report: Callable[[Progress], None] | None,
    ) -> None:
        self.recipe, self.config, self.target, self.source = recipe, config, target, source
        self.out, self.held_out, self.report = out, held_out, report
        self.accelerator = Accelerator(mixed_precision=recipe.train.precision, cpu=target.device.type == "cpu")
        self.ends = stage_ends(recipe, source.steps_per_epoch)
        self.total = self.ends[-1]
        self.step = 0
        self.stage_index = 0
        self.teacher: Any = None
        self.student: Any = None  # what the next stage goes on with
        self.make = network_class(recipe.drafter.kind)
        self.last_tau: float | None = None
        self.record = Record(out, writes=self.accelerator.is_main_process)

    @property
    def stage(self) -> StageRecipe:
        return self.recipe.stages[self.stage_index]

    def begin(self) -> Learner:
        """Go on from ``state.pt`` if there is one, else from the start."""
        state = read_state(self.out / "state.pt")
        if state is None:
            self.record.begin(self.recipe)
            return self._enter_stage(0)
        if (state.recipe, state.total, state.plan) != self._identity():
            raise ConfigError(
                f"{self.out} was begun with another recipe or other data. Use the same ones to go on, or another --out."
            )
        if state.teacher is not None:
            window = [s.window for s in self.recipe.stages[: state.stage] if s.window][-1]
            teacher = self.make(teacher_config(self.config, window)).attach(self.target).to(self.accelerator.device)
            # Frozen as in an unbroken run: PyTorch picks other kernels, with other last bits, for weights that train.
            self.teacher = teacher.requires_grad_(False)
            self.teacher.load_state_dict(state.teacher)
        learner = self._enter_stage(state.stage, state)
        self.step = state.step
        self.record.go_on(self.step)
        self.accelerator.wait_for_everyone()
        return learner

    def one_step(self, learner: Learner) -> Learner:
        """One optimizer step, its log, and what is due after it; returns who took it: a stage may have ended before."""
        while self.step >= self.ends[self.stage_index]:
            learner = self._next_stage(learner)
        begin = perf_counter()
        gradient = learner.gradient(self.step, self.source)
        if not (math.isfinite(gradient.loss) and math.isfinite(gradient.norm)):
            raise DliteError(
                f"step {self.step + 1} has loss {gradient.loss} and gradient norm {gradient.norm}. Expected finite numbers. "
                f"Lower lr, or use precision 'no'; the last good state is in {self.out}."
            )
        learner.update(self._lr_factor())
        self.step += 1
        self._after(learner, gradient, perf_counter() - begin)
        return learner

    def _enter_stage(self, index: int, state: State | None = None) -> Learner:
        self.stage_index = index
        network = stage_network(
            self.make, self.config, self.stage, self.target, self.student, self.teacher, self.recipe.train.seed
        ).to(self.accelerator.device)
        if state is not None:
            network.load_state_dict(state.network)
        optimizers = None if state is None else state.optimizers
        return Learner(self.accelerator, self.recipe, self.stage, self.target, network, self.teacher, optimizers)

    def _next_stage(self, learner: Learner) -> Learner:
        if self.stage.window:
            self.teacher = self._copy(learner.network).requires_grad_(False)
        else:
            self.student = learner.network
        return self._enter_stage(self.stage_index + 1)

    def _copy(self, network: Any) -> Any:
        """The same network with its own weights."""
        twin = self.make(network.config).attach(self.target)
        twin.load_state_dict(network.state_dict())
        return twin.to(self.accelerator.device, self.target.dtype)

    def _lr_factor(self) -> float:
        begin = self.ends[self.stage_index - 1] if self.stage_index else 0
        return lr_factor(self.step - begin, self.ends[self.stage_index] - begin, self.stage.warmup, self.stage.final_lr)

    def _after(self, learner: Learner, gradient: Gradient, seconds: float) -> None:
        settings, name, lr = self.recipe.train, self.stage.name, learner.base_lrs[0] * self._lr_factor()
        self.record.losses(self.step, name, gradient.loss, gradient.parts, lr, gradient.blocks, seconds)
        if self.step % settings.save_every == 0:
            self.save(learner)
        if self.step % settings.eval_every == 0 and self.step < self.total:
            self.evaluate(learner)
        if self.report:
            speed = gradient.blocks / seconds
            self.report(Progress(name, self.step, self.total, gradient.loss, speed, self.last_tau))

    def save(self, learner: Learner) -> None:
        """Write ``state.pt`` whole or not at all."""
        if not self.accelerator.is_main_process:
            return
        teacher = None if self.teacher is None else self.teacher.state_dict()
        optimizers = [o.state_dict() for o in learner.optimizers]
        network = learner.network.state_dict()
        state = State(*self._identity(), self.step, self.stage_index, network, teacher, optimizers)
        try:
            write_state(self.out / "state.pt", state)
            if not self.stage.window:
                save_drafter(learner.network, self.out / "drafter", self.target.info, dtype=torch.bfloat16)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise DataError(
                f"the training state cannot be written to {self.out} ({error}). The one before is intact. Make room and "
                "run the same command again."
            ) from None

    def _identity(self) -> tuple[str, int, str]:
        """What a resumed run must share: the recipe, its steps, and the network, its draft vocabulary, the data's size."""
        recipe = json.dumps(self.recipe.model_dump(mode="json"), sort_keys=True)
        plan = hashlib.sha256(f"{self.config} {self.source.steps_per_epoch}".encode()).hexdigest()
        return recipe, self.total, plan

    def evaluate(self, learner: Learner) -> None:
        """Acceptance length on held-out prompts, by the decoding engine itself."""
        if self.stage.window or not self.held_out or not self.accelerator.is_main_process:
            return
        drafter = self._copy(learner.network).freeze()
        result = held_out_tau(self.target, drafter, self.held_out, self.recipe.train.eval_tokens)
        self.last_tau = result["tau"]
        self.record.tau(self.step, self.stage.name, result)

    def publish(self, learner: Learner) -> Path:
        """The finished drafter's folder."""
        network = learner.network
        if self.stage.window:
            raise ConfigError("the last stage trains a teacher, which cannot be served. Add a stage with window = 0.")
        folder = self.out / "drafter"
        if self.accelerator.is_main_process:
            save_drafter(network, folder, self.target.info, dtype=torch.bfloat16)
            write_card(folder, self.out, network, self.target.info, self.recipe)
            if getattr(network.config, "confidence", False):
                calibrate(
                    folder, self.target, self._copy(network).freeze(), self.held_out, self.recipe.train.eval_tokens
                )
        return folder
