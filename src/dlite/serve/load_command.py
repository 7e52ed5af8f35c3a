"""From workloads and a server's address to a report on disk: what ``dlite bench --server`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dlite.bench.suites import Call
from dlite.bench.workloads import CALLS, Asked, choose, limits, parse
from dlite.errors import ConfigError
from dlite.progress import counting_bar
from dlite.serve.load import Level, LoadSettings, Server, measure
from dlite.serve.load_report import build, figures, write
from dlite.target.load import load_tokenizer

LEVELS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class _Remote:
    """What choosing calls needs of a target that is served elsewhere."""

    tokenizer: Any


def bench_server(
    url: str,
    target: str | None,
    workloads: Sequence[str],
    out: Path,
    *,
    levels: Sequence[int],
    asked: Asked,
    settings: LoadSettings,
    argv: Sequence[str],
) -> bool:
    """Measure every level, write report.json and report.md and print the table. True unless a request failed.

    ``target`` names the model at the server and the tokenizer that prompts are counted with; None: the server's own
    name for its only model. Ctrl-C writes the levels that were finished and goes on.
    """
    wanted = list(dict.fromkeys(levels or LEVELS))
    if min(wanted) < 1:
        raise ConfigError(f"--concurrency is {min(wanted)}. Expected 1 or more. Ask for at least one.")
    server = Server(url, target, settings)
    chosen = _calls(workloads, server, load_tokenizer(target or server.model), asked, settings.seed)
    conditions = {"calls": f"{asked.calls or CALLS} a workload, seed {settings.seed}"}
    done: list[Level] = []
    total = sum(max(len(chosen), 2 * level) for level in wanted)
    try:
        with counting_bar("requests", total) as advance:
            for level in wanted:
                done.append(measure(server, chosen, level, partial(_count, advance, level)))
    except KeyboardInterrupt:
        conditions["interrupted"] = f"after {len(done)} of {len(wanted)} levels"
        raise
    finally:
        if done:
            print(write(build(server, done, settings=settings, argv=argv, conditions=conditions), out))
            print(f"report: {(out / 'report.json').resolve()}")
    return not any(figures(level)["errors"] for level in done)


def refuse_local(given: Sequence[str]) -> None:
    """Options of a local bench are an error beside --server. Errors: ``ConfigError``."""
    if given:
        raise ConfigError(
            f"{' and '.join(given)} would be ignored: with --server the server decides how it decodes. Leave "
            f"{'it' if len(given) == 1 else 'them'} out, or leave --server out."
        )


def _count(advance: Callable[[int, str], None], level: int, requests: int) -> None:
    advance(requests, f"{level} in flight")


def _calls(workloads: Sequence[str], server: Server, tokenizer: Any, asked: Asked, seed: int) -> list[Call]:
    """The calls of all workloads. Later turns of a conversation need an answer first and stay out."""
    context = server.context or int(tokenizer.model_max_length)
    chosen: list[Call] = []
    for item in (item for given in workloads for item in parse(given)):
        within = limits(item, asked, context)
        calls = choose(item, _Remote(tokenizer), within, seed)  # type: ignore[arg-type]
        chosen += [call for call in calls if call.follows is None]
    return chosen
