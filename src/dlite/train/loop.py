"""One step function, one resume counter, real tau while it trains.

A run folder holds ``recipe.json``, ``losses.jsonl``, ``tau.jsonl``, ``state.pt`` (everything needed to go on),
TensorBoard logs and ``drafter/``, the drafter so far (with its card, at the end). Killed at any moment and started
again, a run repeats the steps after its last save and gives the same losses.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor

from dlite.checkpoint import save_drafter
from dlite.config import Recipe, StageRecipe
from dlite.drafters import network_class
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.engine.stats import acceptance_by_position, is_looping, tau
from dlite.errors import ConfigError, DataError, DliteError
from dlite.features.blocks import Blocks
from dlite.nn.losses import LossSum
from dlite.target.base import Target
from dlite.train.calibrate import calibrate
from dlite.train.card import write_card
from dlite.train.muon import Muon
from dlite.train.source import Source
from dlite.train.stages import block_input, stage_loss, stage_network, teacher_config


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
    run.resume()
    while run.step < run.total:
        run.one_step()
    run.save()
    run.evaluate()
    return run.publish()


class _Run:
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
        self.ends = _stage_ends(recipe, source.steps_per_epoch)
        self.total = self.ends[-1]
        self.step = 0
        self.teacher: Any = None
        self.network: Any = None
        self.student: Any = None  # what the next stage goes on with
        self.make = network_class(recipe.drafter.kind)
        self.stage_index = -1
        self.last_tau: float | None = None
        out.mkdir(parents=True, exist_ok=True)
        self.board = _tensorboard(out / "tensorboard") if self.accelerator.is_main_process else None

    @property
    def stage(self) -> StageRecipe:
        return self.recipe.stages[self.stage_index]

    def resume(self) -> None:
        """Go on from ``state.pt`` if there is one, else begin."""
        path = self.out / "state.pt"
        recipe = self.recipe.model_dump(mode="json")
        if not path.exists():
            if self.accelerator.is_main_process:
                (self.out / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n")
                for name in ("losses.jsonl", "tau.jsonl"):
                    (self.out / name).unlink(missing_ok=True)
            self._enter_stage(0)
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises what it meets
            raise DataError(f"{path} cannot be read ({error}). Delete it to train from the start.") from None
        if [state[key] for key in ("recipe", "total", "plan")] != [self._recipe_text(), self.total, self._plan()]:
            raise ConfigError(
                f"{self.out} was begun with another recipe or other data. Use the same ones to go on, or another --out."
            )
        if state["teacher"] is not None:
            window = [s.window for s in self.recipe.stages[: state["stage"]] if s.window][-1]
            teacher = self.make(teacher_config(self.config, window)).attach(self.target).to(self.accelerator.device)
            # Frozen as in an unbroken run: PyTorch picks other kernels, with other last bits, for weights that train.
            self.teacher = teacher.requires_grad_(False)
            self.teacher.load_state_dict(state["teacher"])
        self._enter_stage(state["stage"], state)
        self.step = state["step"]
        if self.accelerator.is_main_process:
            for name in ("losses.jsonl", "tau.jsonl"):
                _keep_steps(self.out / name, self.step)
        self.accelerator.wait_for_everyone()

    def one_step(self) -> None:
        """One optimizer step: accumulate sums, divide by the global weight, clip, update, log."""
        while self.step >= self.ends[self.stage_index]:
            self._leave_stage()
        begin = perf_counter()
        for optimizer, base in zip(self.optimizers, self.base_lrs, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * self._lr_factor()
        total, parts, blocks = self._accumulate()
        weight = self.accelerator.reduce(total.weight, "sum")
        for parameter in self.trained:
            if parameter.grad is not None:  # DDP has averaged over ranks, so times their number
                parameter.grad.mul_(self.accelerator.num_processes / weight)
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.recipe.train.clip)
        loss = float(self.accelerator.reduce(total.sum, "sum") / weight)
        if not (math.isfinite(loss) and math.isfinite(float(norm))):
            raise DliteError(
                f"step {self.step + 1} has loss {loss} and gradient norm {float(norm)}. Expected finite numbers. Lower lr, or "
                f"use precision 'no'; the last good state is in {self.out}."
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._log(loss, {k: v / float(total.weight) for k, v in parts.items()}, blocks, perf_counter() - begin)

    def _accumulate(self) -> tuple[LossSum, dict[str, float], int]:
        settings, seen = self.recipe.train, 0
        total: LossSum | None = None
        parts: dict[str, float] = {}
        for micro in range(settings.accumulate):
            number = self.step * settings.accumulate + micro
            blocks = self.source.batch(
                number, self.accelerator.process_index, self.accelerator.num_processes, self.history
            ).to(self.accelerator.device)
            last = micro == settings.accumulate - 1
            with self.accelerator.no_sync(self.model) if not last else nullcontext():
                found, some = self._loss(blocks, number)
                self.accelerator.backward(found.sum)
            found = LossSum(found.sum.detach(), found.weight.detach())
            total = found if total is None else LossSum(total.sum + found.sum, total.weight + found.weight)
            parts = {k: parts.get(k, 0.0) + v for k, v in some.items()}
            seen += len(blocks)
        if total is None:
            raise RuntimeError("accumulate is at least 1")
        return total, parts, seen * self.accelerator.num_processes

    def _loss(self, blocks: Blocks, number: int) -> tuple[LossSum, dict[str, float]]:
        K = _block_length(self.recipe, number)
        net = self._net()
        output = self.model(block_input(blocks, K, net.history))
        teacher_logits = None
        if self.stage.losses.kl_teacher and self.teacher is not None:
            with torch.no_grad():
                teacher_logits = self.teacher(block_input(blocks, K, self.teacher.history)).logits
        losses, settings = self.stage.losses, self.recipe.train
        return stage_loss(output, blocks, losses, settings, self.target, net.vocab, teacher_logits)

    @property
    def history(self) -> int:
        """Positions before the pivot that this stage's network or its teacher needs."""
        teacher = self.teacher.history if self.teacher and self.stage.losses.kl_teacher else 0
        return max(int(self._net().history), teacher)

    def _net(self) -> Any:
        if self.network is None:
            raise RuntimeError("no stage was entered")
        return self.network

    def _copy(self, network: Any) -> Any:
        """The same network with its own weights."""
        twin = self.make(network.config).attach(self.target)
        twin.load_state_dict(network.state_dict())
        return twin.to(self.accelerator.device, self.target.dtype)

    def _enter_stage(self, index: int, state: dict[str, Any] | None = None) -> None:
        self.stage_index = index
        seed = self.recipe.train.seed
        self.network = stage_network(
            self.make, self.config, self.stage, self.target, self.student, self.teacher, seed
        ).to(self.accelerator.device)
        if state is not None:
            self.network.load_state_dict(state["network"])
        self.trained = [p for p in self.network.parameters() if p.requires_grad]
        optimizers = _optimizers(self.network, self.recipe, self.stage)
        if state is not None:
            for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        self.base_lrs = [self.stage.lr if isinstance(o, torch.optim.AdamW) else self.stage.muon_lr for o in optimizers]
        self.model, *self.optimizers = self.accelerator.prepare(self.network, *optimizers)

    def _leave_stage(self) -> None:
        network = self._net()
        if self.stage.window:
            self.teacher = self._copy(network).requires_grad_(False)
        else:
            self.student = network
        self._enter_stage(self.stage_index + 1)

    def _lr_factor(self) -> float:
        begin = self.ends[self.stage_index - 1] if self.stage_index else 0
        return lr_factor(self.step - begin, self.ends[self.stage_index] - begin, self.stage.warmup, self.stage.final_lr)

    def _log(self, loss: float, parts: dict[str, float], blocks: int, seconds: float) -> None:
        settings = self.recipe.train
        if self.accelerator.is_main_process:
            lr = self.base_lrs[0] * self._lr_factor()
            record = {"step": self.step, "stage": self.stage.name, "loss": loss, **parts, "lr": lr, "blocks": blocks}
            _append(self.out / "losses.jsonl", record | {"seconds": round(seconds, 3)})
            if self.board:
                for key in ("loss", *parts, "lr"):
                    self.board.add_scalar(f"{self.stage.name}/{key}", record[key], self.step)
        if self.step % settings.save_every == 0:
            self.save()
        if self.step % settings.eval_every == 0 and self.step < self.total:
            self.evaluate()
        if self.report:
            self.report(Progress(self.stage.name, self.step, self.total, loss, blocks / seconds, self.last_tau))

    def save(self) -> None:
        """Write ``state.pt`` whole or not at all."""
        if not self.accelerator.is_main_process:
            return
        state = {
            "recipe": self._recipe_text(),
            "total": self.total,
            "plan": self._plan(),
            "step": self.step,
            "stage": self.stage_index,
            "network": self._net().state_dict(),
            "teacher": None if self.teacher is None else self.teacher.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
        }
        part = self.out / "state.pt.part"
        try:
            torch.save(state, part)
            part.replace(self.out / "state.pt")
            if not self.stage.window:
                save_drafter(self._net(), self.out / "drafter", self.target.info, dtype=torch.bfloat16)
        except (OSError, RuntimeError, SafetensorError) as error:
            part.unlink(missing_ok=True)
            raise DataError(
                f"the training state cannot be written to {self.out} ({error}). The one before is intact. Make room and "
                "run the same command again."
            ) from None

    def _recipe_text(self) -> str:
        return json.dumps(self.recipe.model_dump(mode="json"), sort_keys=True)

    def _plan(self) -> str:
        """What a resumed run must share beside the recipe: the network, its draft vocabulary, the amount of data."""
        text = f"{self.config} {self.source.steps_per_epoch}"
        return hashlib.sha256(text.encode()).hexdigest()

    def evaluate(self) -> None:
        """Acceptance length on held-out prompts, by the decoding engine itself."""
        network = self._net()
        if self.stage.window or not self.held_out or not self.accelerator.is_main_process:
            return
        result = held_out_tau(self.target, self._copy(network).freeze(), self.held_out, self.recipe.train.eval_tokens)
        self.last_tau = result["tau"]
        seen = sum(json.loads(line)["blocks"] for line in (self.out / "losses.jsonl").read_text().splitlines())
        _keep_steps(self.out / "tau.jsonl", self.step - 1)  # a finished run that is started again says it once
        _append(self.out / "tau.jsonl", {"step": self.step, "stage": self.stage.name, "blocks": seen, **result})
        if self.board:
            self.board.add_scalar("held-out/tau", self.last_tau, self.step)

    def publish(self) -> Path:
        """The finished drafter's folder."""
        network = self._net()
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


def lr_factor(step: int, steps: int, warmup: float, final: float) -> float:
    """Linear warm-up over ``warmup`` of the steps, then a cosine from 1 to ``final``."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1, steps - rise)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))


def held_out_tau(target: Target, drafter: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> dict[str, Any]:
    """tau and acceptance by position over prompts never trained on, looping answers left out."""
    engine = Engine(target, drafter, max_batch=8)
    numbers = [engine.submit(Request(ids, tokens)) for ids in prompts]
    engine.run()
    answers = [engine.result(n) for n in numbers]
    rounds = [r for a in answers if not is_looping(a.token_ids) for r in a.rounds]
    shares = [round(x, 4) for x in acceptance_by_position(rounds)]
    return {"tau": round(tau(rounds), 4), "acceptance_by_position": shares, "rounds": len(rounds)}


def _stage_ends(recipe: Recipe, steps_per_epoch: int) -> list[int]:
    ends, total = [], 0
    for stage in recipe.stages:
        if (stage.steps is None) == (stage.epochs is None):
            raise ConfigError(f"stage {stage.name!r} needs exactly one of 'steps' and 'epochs'.")
        per_epoch = steps_per_epoch / recipe.train.accumulate
        total += stage.steps if stage.steps is not None else max(1, round((stage.epochs or 0) * per_epoch))
        ends.append(total)
    return ends


def _optimizers(network: Any, recipe: Recipe, stage: StageRecipe) -> list[torch.optim.Optimizer]:
    settings, named = recipe.train, [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    matrices: list[Tensor] = []
    if settings.optimizer == "muon":  # tables and vocabulary matrices stay with AdamW
        tables = {id(p) for m in network.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
        matrices = [p for _, p in named if p.ndim == 2 and min(p.shape) > 1 and id(p) not in tables]
        matrices = [p for p in matrices if p.shape[0] != network.vocab.size]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    adam = torch.optim.AdamW(rest, lr=stage.lr, betas=(0.9, settings.beta2), weight_decay=0.0, fused=True)
    return [adam, Muon(matrices, stage.muon_lr)] if matrices else [adam]


def _block_length(recipe: Recipe, number: int) -> int:
    """K, or for a share ``short_blocks`` of the batches a shorter block, which costs less."""
    chance = random.Random(f"{recipe.train.seed}-block-{number}")
    K = recipe.drafter.K
    return chance.randint(min(2, K), max(2, K // 2)) if chance.random() < recipe.train.short_blocks and K > 2 else K


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


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
