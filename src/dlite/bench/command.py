"""From files and names to a report on disk: what ``dlite bench`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from dlite.bench.page import write_html
from dlite.bench.report import build, write_json, write_text
from dlite.bench.run import Arm, BenchResult, BenchSettings, Interrupted, run
from dlite.bench.suites import Call, in_range, load
from dlite.bench.tables import markdown, show
from dlite.data.chat import render
from dlite.drafters import load_drafter
from dlite.sampling import SamplingParams
from dlite.target.base import Target


def bench_files(
    target: Target,
    workloads: Sequence[str],
    drafters: Sequence[str],
    Ks: Sequence[int],
    out: Path,
    *,
    calls: int,
    max_new_tokens: int,
    min_context: int,
    max_context: int | None,
    sampling: SamplingParams,
    include_loops: bool,
    seed: int,
    argv: Sequence[str],
) -> bool:
    """Run the arms over the workloads and write report.json, report.md and report.html into ``out``.

    True unless an arm's text differed from plain decoding's. After Ctrl-C the report holds the calls measured so far and
    says so; then the KeyboardInterrupt goes on.
    """
    limit = max_context or target.info.context_length - max_new_tokens
    chosen: list[Call] = []
    for item in workloads:
        name, _, path = item.rpartition("=")
        loaded = load(path, workload=name or None, max_new_tokens=max_new_tokens)
        chosen += in_range(
            loaded, render, target.tokenizer, min_context=min_context, max_context=limit, n=calls, seed=seed
        )
    # Near-ties: rounding of fp32, or a few steps of a 16-bit logit.
    tie_gap = 1e-4 if target.dtype == torch.float32 else 0.5
    settings = BenchSettings(sampling=sampling, include_loops=include_loops, seed=seed, tie_gap=tie_gap)
    conditions = {"calls": f"{calls} a workload, seed {seed}"}
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
    for name in drafters:
        drafter = load_drafter(name, target)
        path = Path(name).resolve()
        title = "DLite" if name == "shipped" else path.parent.name if path.name == "drafter" else path.name
        arms += [Arm(f"{title} K={K}", drafter, K) for K in Ks] or [Arm(title, drafter)]
    return arms
