"""The ways of decoding that are compared: plain, and each drafter with each K, none sharing what it learns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlite.bench.command import ADAPTIVE, split_adaptive
from dlite.bench.run import PLAIN, Arm
from dlite.drafters import SHIPPED, load_drafter, shipped_folder
from dlite.drafters.none import NoDrafter
from dlite.engine.control import Control
from dlite.errors import ConfigError
from dlite.target.base import Target

LOOKUPS: dict[str, dict[str, Any]] = {  # drafters without weights that vLLM has too -> its settings
    "ngram": {"method": "ngram", "prompt_lookup_max": 3},
    "suffix": {"method": "suffix"},
}


def default_drafters(target: Target) -> list[str]:
    """Where nobody names a drafter: the one that ships for the target; else those that need no training."""
    return ["shipped"] if target.info.name in SHIPPED else list(LOOKUPS)


def make_arms(target: Target, drafters: Sequence[str], Ks: Sequence[int]) -> tuple[list[Arm], dict[str, str]]:
    """Plain decoding first, then every drafter but 'none' with every K; and the name each arm's drafter was given by.

    A drafter is loaded anew for each K, since one may learn from what it sees. Errors: ``ConfigError`` for a K that
    a drafter cannot have.
    """
    wanted = [name for name in dict.fromkeys(drafters) if name != "none"]
    if Ks and not wanted:
        raise ConfigError(
            f"K is {Ks[0]}, but no drafter is given. Expected a --drafter for it. Leave -K out or name one."
        )
    arms, given = [Arm(PLAIN, NoDrafter())], {}
    for named in wanted:
        name, adaptive = split_adaptive(named)
        for K in dict.fromkeys(Ks) if Ks else (None,):
            drafter = load_drafter(name, target)
            most = drafter.max_drafts
            if (K is not None and not 1 <= K <= most) or (adaptive and not most):
                raise ConfigError(
                    f"K is {K or 0}. The drafter {name!r} proposes 1 to {most} drafts. Choose one of these."
                )
            title = _title(name) + (" adaptive" if adaptive else "") + ("" if K is None else f" K={K}")
            title = title if title not in given else f"{title} ({named})"
            arms.append(Arm(title, drafter, K, Control() if adaptive else None))
            given[title] = named
    return arms, given


def serving_flags(target: Target, arm: Arm, named: str) -> list[tuple[str, str]]:
    """(where, what to write) to serve as an arm was measured."""
    name = target.info.name
    K = arm.drafter.max_drafts if arm.K is None else arm.K
    given = named.removesuffix(ADAPTIVE) if arm.control else named
    kind = given.partition(":")[0]
    if kind in LOOKUPS and not arm.control:
        settings = json.dumps({**LOOKUPS[kind], "num_speculative_tokens": K})
        return [
            ("dlite", f"dlite serve --target {name} --drafter {kind} -K {K}"),
            ("vLLM", f"--enable-prefix-caching --speculative-config '{settings}'"),
        ]
    adaptive = " --adaptive" if arm.control else ""
    flags = [("dlite", f"dlite generate --target {name} --drafter {given} -K {K}{adaptive}")]
    if arm.drafter.name == "dlite" and not arm.control:
        folder = shipped_folder(target) if given == "shipped" else Path(given)
        settings = json.dumps({"method": "dflash", "model": str(folder.resolve()), "num_speculative_tokens": K})
        return [
            *flags,
            ("vLLM, with dlite installed beside it", f"--enable-prefix-caching --speculative-config '{settings}'"),
        ]
    return [*flags, ("any engine that reads this drafter", f"num_speculative_tokens = {K}, prefix caching on")]


def _title(name: str) -> str:
    """A name for tables and pictures: the run's, for a drafter inside a run's folder."""
    if name == "shipped":
        return "DLite"
    kind, colon, argument = name.partition(":")
    if colon and not Path(name).exists():
        return f"{kind} {_title(argument)}"
    path = Path(name).resolve()
    return path.parent.name if path.name == "drafter" else path.name
