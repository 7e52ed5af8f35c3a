"""The command line of a serving engine for a target and a drafter, after everything that can be checked was checked."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlite.checkpoint import load_drafter as load_folder
from dlite.drafters import SHIPPED, TABLE
from dlite.errors import CheckpointError, ConfigError, DliteError
from dlite.serve.engines import TITLES, Installed, find_engine
from dlite.target.base import TargetInfo
from dlite.target.hf import tokenizer_hash
from dlite.target.load import load_info, load_tokenizer, resolve

TODAY = "What can be served today: --drafter ngram, --drafter suffix (vLLM only), --drafter none."
K = 7


@dataclass(frozen=True)
class Wanted:
    """What is to be served. ``K`` None is 7; ``context`` None is the target's own; ``extra`` goes to the engine as it is."""

    target: str
    drafter: str
    engine: str = "auto"
    K: int | None = None
    context: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    extra: tuple[str, ...] = ()


def command_line(wanted: Wanted) -> list[str]:
    """The engine's command line. Errors: ``DliteError`` for what cannot be served, with what can."""
    if wanted.K is not None and (wanted.K < 1 or wanted.drafter == "none"):
        raise ConfigError(
            f"K is {wanted.K} with --drafter {wanted.drafter}. Expected 1 or more, and a drafter that drafts."
        )
    info = load_info(wanted.target)
    if wanted.context is not None and not 1 <= wanted.context <= info.context_length:
        raise ConfigError(
            f"--max-context is {wanted.context}. {info.name} has a context of {info.context_length} tokens. Expected 1 to "
            f"{info.context_length}."
        )
    check_drafter(wanted.drafter, wanted.target, info)
    engine = find_engine(wanted.engine)
    return (_vllm if engine.name == "vllm" else _sglang)(wanted, engine)


def check_drafter(name: str, target: str, info: TargetInfo) -> None:
    """Pass what an engine has itself; refuse the rest. Errors: ``DliteError`` with the first thing that is wrong."""
    if name in ("none", "ngram", "suffix"):
        return
    if name == "shipped" and info.name not in SHIPPED:
        raise DliteError(f"no drafter ships with dlite for {info.name!r}. Shipped: {', '.join(SHIPPED)}. {TODAY}")
    folder = Path(__file__).parent.parent / "shipped" / SHIPPED[info.name] if name == "shipped" else Path(name)
    if not folder.is_dir():
        what = "is not served by any engine" if name.partition(":")[0] in TABLE else "is neither a folder nor a drafter"
        raise CheckpointError(
            f"the drafter {name!r} {what}. Expected ngram, suffix, none or a drafter's folder. {TODAY}"
        )
    info = replace(info, tokenizer_hash=tokenizer_hash(load_tokenizer(target)))
    network, _ = load_folder(folder, info)  # layers, sizes, vocabulary, tokenizer and taps fit the target
    last = info.num_layers - 1
    deepest = f" Its last tap (layer {last}) is one that SGLang 0.5.23 cannot capture." if last in network.taps else ""
    raise DliteError(
        f"this drafter ({network.name}, K {network.max_drafts}, taps {network.taps}) fits {info.name}, but serving it needs a "
        f"plug-in for vLLM or SGLang that this version of dlite does not have.{deepest} Use it with dlite generate. {TODAY}"
    )


def _vllm(wanted: Wanted, engine: Installed) -> list[str]:
    """``vllm serve``. The program stands beside the interpreter that has the package."""
    beside = Path(sys.executable).parent
    program = shutil.which("vllm", path=str(beside)) or shutil.which("vllm")
    if program is None:
        raise DliteError(f"{engine.label} is installed, but its program vllm is not in {beside}. Install it again.")
    command = [program, "serve", resolve(wanted.target), "--served-model-name", wanted.target]
    command += ["--host", wanted.host, "--port", str(wanted.port)]
    command += [] if wanted.context is None else ["--max-model-len", str(wanted.context)]
    drafts = wanted.K or K
    if wanted.drafter == "ngram":
        command += _speculative({"method": "ngram", "prompt_lookup_max": 3, "num_speculative_tokens": drafts})
    if wanted.drafter == "suffix":
        if importlib.util.find_spec("arctic_inference") is None:
            raise DliteError(
                "vLLM drafts by suffix with the package arctic-inference, which is not installed. Install it with: pip install "
                "arctic-inference, or use --drafter ngram."
            )
        command += _speculative({"method": "suffix", "num_speculative_tokens": drafts})
    return [*command, *wanted.extra]


def _speculative(settings: dict[str, str | int]) -> list[str]:
    return ["--speculative-config", json.dumps(settings)]


def _sglang(wanted: Wanted, engine: Installed) -> list[str]:
    """``python -m sglang.launch_server``."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", resolve(wanted.target)]
    command += ["--served-model-name", wanted.target, "--host", wanted.host, "--port", str(wanted.port)]
    command += [] if wanted.context is None else ["--context-length", str(wanted.context)]
    if wanted.drafter == "suffix":
        raise DliteError(
            f"{TITLES[engine.name]} cannot draft by suffix. Expected ngram or none. Use one, or --engine vllm."
        )
    if wanted.drafter == "ngram":
        drafts = str((wanted.K or K) + 1)  # SGLang counts the anchor in
        command += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", drafts]
    return [*command, *wanted.extra]


def shown(command: Sequence[str]) -> str:
    """As it would be typed."""
    return shlex.join(command)
