"""From files and names to a report on disk: what ``dlite bench`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from dlite.bench.page import write_html
from dlite.bench.report import build, write_json, write_text
from dlite.bench.run import Arm, BenchResult, BenchSettings, Interrupted, run
from dlite.bench.suites import Call
from dlite.bench.tables import markdown, show
from dlite.bench.workloads import CALLS, Asked, choose, limits, parse
from dlite.data.chat import render
from dlite.drafters import load_drafter
from dlite.engine.control import Control
from dlite.errors import ConfigError
from dlite.sampling import SamplingParams
from dlite.target.base import Target

ADAPTIVE = "+adaptive"


def bench_files(
    target: Target,
    workloads: Sequence[str],
    drafters: Sequence[str],
    Ks: Sequence[int],
    out: Path,
    *,
    calls: int | None,
    max_new_tokens: int | None,
    min_context: int | None,
    max_context: int | None,
    sampling: SamplingParams,
    include_loops: bool,
    seed: int,
    argv: Sequence[str],
) -> bool:
    """Run the arms over the workloads and write report.json, report.md and report.html into ``out``.

    What of the sizes is None is left to the rules of each workload. True unless an arm's text differed from plain
    decoding's. After Ctrl-C the report holds the calls measured so far and says so; then the KeyboardInterrupt goes on.
    """
    asked = Asked(calls, max_new_tokens, min_context, max_context)
    items = [item for given in workloads for item in parse(given)]
    found = {item: limits(item, asked, target.info.context_length) for item in items}
    chosen: list[Call] = []
    for item, within in found.items():
        chosen += choose(item, target, within, seed)
    # Near-ties: rounding of fp32, or a few steps of a 16-bit logit.
    tie_gap = 1e-4 if target.dtype == torch.float32 else 0.5
    settings = BenchSettings(sampling=sampling, include_loops=include_loops, seed=seed, tie_gap=tie_gap)
    conditions = {"calls": f"{calls or CALLS} a workload, seed {seed}"}
    conditions |= {item.name: within.sentence() for item, within in found.items() if item.rules}
    arms = _arms(target, drafters, Ks)
    try:
        result = run(target, arms, chosen, render=render, settings=settings, progress=True)
    except Interrupted as stop:
        measured = len({trial.call for trial in stop.result.trials})
        _write(stop.result, out, argv, {**conditions, "interrupted": f"after {measured} of {len(chosen)} calls"})
        raise
    _write(result, out, argv, conditions)
    return all(result.lossless(arm.name) is not False for arm in result.arms)


def _write(result: BenchResult, out: Path, argv: Sequence[str], conditions: Mapping[str, str]) -> None:
    report = build(result, argv=argv, conditions=conditions)
    write_json(report, out / "report.json")
    write_text(markdown(report), out / "report.md")
    write_html(report, out / "report.html")
    show(report)
    print(f"\nreport: {(out / 'report.html').resolve()}")


def _arms(target: Target, drafters: Sequence[str], Ks: Sequence[int]) -> list[Arm]:
    arms = []
    for given in drafters:
        name, adaptive = split_adaptive(given)
        drafter = load_drafter(name, target)
        if adaptive and not drafter.max_drafts:
            raise ConfigError(
                f"{given} has no drafts to adapt. Expected a drafter that makes some, as in shipped{ADAPTIVE}."
            )
        path = Path(name).resolve()
        title = "DLite" if name == "shipped" else path.parent.name if path.name == "drafter" else path.name
        title += " adaptive" if adaptive else ""
        for K in Ks or (None,):
            control = Control() if adaptive else None
            arms.append(Arm(title if K is None else f"{title} K={K}", drafter, K, control))
    return arms


def split_adaptive(given: str) -> tuple[str, bool]:
    """A drafter's name, and whether ``+adaptive`` stood behind it."""
    name = given.removesuffix(ADAPTIVE)
    return (given, False) if name == given or Path(given).exists() else (name, True)
