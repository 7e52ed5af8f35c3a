"""From logs and a drafter to a better drafter on disk: what ``dlite adapt`` does. Each part is skipped where it was done."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dlite.adapt.compare import AFTER, compare, verdict
from dlite.adapt.learn import adaptation, learn, load_start, weights_folder
from dlite.adapt.report import Report, build, read, write
from dlite.adapt.split import Split, SplitSettings, split_turns
from dlite.audit.turns import Turn
from dlite.bench.report import write_text
from dlite.config import Recipe
from dlite.errors import ConfigError
from dlite.target.base import Target

PLAN = "adapt.json"


def adapt_traces(
    target: Target,
    sources: Sequence[str],
    apart: Sequence[str],
    drafter: str,
    out: Path,
    settings: SplitSettings,
    recipe: str,
    overrides: Sequence[str],
    *,
    batch: int = 8,
    include_loops: bool = False,
    argv: Sequence[str] = (),
) -> Report:
    """Adapt a drafter to the traces and leave the better of the two in ``out``/drafter, with report.json and report.md.

    Errors: ``DliteError``, also for an ``out`` that was begun otherwise.
    """
    before = weights_folder(drafter, target)
    start = load_start(before, target)
    wanted = adaptation(start, target.info, recipe, overrides)
    split = split_turns(target, sources, apart, settings)
    _begin(out, _plan(target, before, settings, wanted, split))
    if (out / "report.json").exists():
        return read(out / "report.json")
    learned = learn(target, start, split.learn, wanted, out, settings.max_new_tokens, batch)
    done = compare(target, before, learned.folder, split.judge, settings.max_new_tokens)
    found = verdict(done, include_loops=include_loops, seed=settings.seed)
    _keep(learned.folder if found.kept == AFTER else before, out / "drafter")
    report = build(
        done, split, learned, found, wanted, target=target, drafter=drafter, include_loops=include_loops,
        seed=settings.seed, argv=argv,
    )  # fmt: skip
    write(report, out)
    return report


def summary(report: Report, out: Path) -> str:
    """A few lines for the terminal."""
    rows = {row["arm"]: row["tau"] for row in report["figures"] if row["by"] == "all"}
    taus = ", ".join(f"{arm} {rows[arm]['value']:.2f}" for arm in ("before", "after") if rows.get(arm))
    lines = [report["sentence"], f"tau on held-out calls: {taus}"] if taus else [report["sentence"]]
    return "\n".join([*lines, f"drafter: {out / 'drafter'}", f"report:  {(out / 'report.md').resolve()}"])


def _plan(target: Target, before: Path, settings: SplitSettings, recipe: Recipe, split: Split) -> dict[str, Any]:
    """What two runs into one folder must share."""
    plan = {
        "target": [target.info.name, target.info.tokenizer_hash],
        "drafter": _digest((before / name).read_bytes() for name in ("config.json", "model.safetensors")),
        "settings": asdict(settings),
        "recipe": recipe.model_dump(mode="json"),
        "calls to learn from": _digest(map(_turn, split.learn)),
        "calls to be judged on": _digest(map(_turn, split.judge)),
    }
    return dict(json.loads(json.dumps(plan)))


def _begin(out: Path, plan: dict[str, Any]) -> None:
    path = out / PLAN
    if not path.exists():
        write_text(json.dumps(plan, indent=1) + "\n", path)
        return
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        begun = {}
    for key, value in plan.items():
        if begun.get(key) != value:
            raise ConfigError(
                f"{out} was begun with another value of its {key}. Expected the same traces, drafter and options: then it goes "
                "on. Repeat the command it was begun with, or give another --out."
            )


def _keep(folder: Path, place: Path) -> None:
    """Copy a drafter; it appears whole or not at all."""
    part = place.with_name(f".{place.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(folder, part)
    shutil.rmtree(place, ignore_errors=True)
    part.rename(place)


def _turn(turn: Turn) -> bytes:
    return repr((turn.id, turn.ids)).encode()


def _digest(parts: Any) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
