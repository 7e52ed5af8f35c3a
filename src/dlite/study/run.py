"""The study from end to end: capture, every arm, every workload, one JSON. Each part is skipped where it was done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from dlite.bench.report import build, read_json, write_json, write_text
from dlite.bench.run import Arm, BenchSettings, run
from dlite.bench.workloads import Asked, choose, limits, parse
from dlite.data.chat import render
from dlite.features.store import MANIFEST
from dlite.provenance import provenance
from dlite.study.anchors import Matches, figures, matches
from dlite.study.arms import capture, drafter_folder, facts, prepare, ready
from dlite.study.plan import ArmPlan, StudyPlan
from dlite.target.base import Target
from dlite.train.loop import Progress

FORMAT, VERSION = "dlite-study", 1
Bar = Callable[[str], AbstractContextManager[Callable[[Progress], None]]]


def study(
    plan: StudyPlan,
    target: Target,
    data: Sequence[Path],
    workloads: Mapping[str, Path | None],
    out: Path,
    *,
    argv: Sequence[str],
    only: Sequence[str] = (),
    captured: Callable[[int], None] | None = None,
    bar: Bar | None = None,
) -> dict[str, Any]:
    """Run what is missing of a study and write ``study.json``; returns it. ``only`` limits it to some arms.

    ``workloads`` are files by name; None is the source of a public workload. The plan says how many calls, how long.
    """
    arms = [arm for arm in plan.arms if not only or arm.name in only]
    first = next(plan.recipe(arm) for arm in plan.arms if arm.recipe)
    material = capture(plan, target, data, out, first.drafter.K, captured)
    for arm in arms:
        if bar is None:
            prepare(plan, arm, target, material, out, None)
        else:
            with bar(arm.name) as show:
                prepare(plan, arm, target, material, out, show)
    fixed = _at_anchors(plan, arms, target, material.fixed, out) if material.fixed else {}
    drafters = {arm.name: ready(arm, target, out) for arm in arms}
    lanes = [Arm(name, drafter) for name, drafter in drafters.items()]
    measured: list[dict[str, Any]] = []
    checks: dict[str, bool | None] = {}
    for name, path in workloads.items():
        report = _evaluated(plan, target, lanes, name, path, out, argv)
        measured += [row for row in report["figures"] if row["workload"] == name]
        for arm in report["arms"]:
            checks[arm["name"]] = checks.get(arm["name"], True) and arm["lossless"]
    record = {
        "format": FORMAT,
        "version": VERSION,
        "made": provenance(argv),
        "plan": plan.model_dump(mode="json"),
        "target": {"name": target.info.name, "layers": target.info.num_layers, "hidden_size": target.info.hidden_size},
        "conversations": len(material.conversations),
        "training_tokens": sum(sum(c.wrote) for c in material.conversations),
        "lossless": checks,
        "arms": [facts(arm, drafters[arm.name], out) | {"fixed": fixed.get(arm.name)} for arm in arms],
        "figures": measured,
    }
    write_text(json.dumps(record, indent=1) + "\n", out / "study.json")
    return record


def _at_anchors(
    plan: StudyPlan, arms: Sequence[ArmPlan], target: Target, store: Path, out: Path
) -> dict[str, dict[str, Any]]:
    """Figures at the held-out anchors of every arm that has weights, beside the first; kept until weights or anchors change."""
    found: dict[str, Matches] = {}
    for arm in arms:
        folder = drafter_folder(out, arm.name)
        if arm.drafter is not None:
            continue
        place = out / "fixed" / f"{arm.name}.json"
        made = {"weights": _digest(folder / "model.safetensors"), "anchors": _digest(store / MANIFEST)}
        kept = json.loads(place.read_text()) if place.exists() else {}
        if any(kept.get(key) != value for key, value in made.items()):
            kept = {**made, "matches": matches(folder, target, store, plan.batch_blocks)}
            place.parent.mkdir(exist_ok=True)
            write_text(json.dumps(kept) + "\n", place)
        found[arm.name] = [tuple(one) for one in kept["matches"]]
    first = next(iter(found.values()), [])
    K = next(plan.recipe(arm) for arm in plan.arms if arm.recipe).drafter.K
    return {name: figures(one, first, K, plan.seed) for name, one in found.items()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _evaluated(
    plan: StudyPlan, target: Target, lanes: Sequence[Arm], name: str, path: Path | None, out: Path, argv: Sequence[str]
) -> dict[str, Any]:
    """The bench report of one workload: read if it has these arms, else run, every arm in turn on every call."""
    place = out / "eval" / f"{name}.json"
    if place.exists():
        report = read_json(place)
        if [arm["name"] for arm in report["arms"]][1:] == [lane.name for lane in lanes]:
            return report
    (item,) = parse(name if path is None else f"{name}={path}")
    asked = Asked(plan.calls, plan.max_new_tokens, 0, plan.max_context)
    calls = choose(item, target, limits(item, asked, target.info.context_length), plan.seed)
    result = run(target, lanes, calls, render=render, settings=BenchSettings(seed=plan.seed), progress=True)
    report = build(result, argv=argv)
    write_json(report, place)
    return report
