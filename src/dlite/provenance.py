"""What made a number: command, versions, commit, machine and time, to lie beside every output."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def provenance(argv: Sequence[str]) -> dict[str, Any]:
    """What made the numbers: command, versions, commit, machine and time."""
    import torch

    return {
        "argv": [_command(argv[0]), *argv[1:]] if argv else [],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dlite": _version("dlite"),
        "torch": str(torch.__version__),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
    }


def _command(path: str) -> str:
    """What was called, without where it lies."""
    name = Path(path).name
    return "dlite" if name == "__main__.py" else name


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of dlite's own sources, marked if they were changed; None for an installed package."""
    here = Path(__file__)
    try:
        _git(here.parent, "ls-files", "--error-unmatch", here.name)  # not just any repository around the package
        return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()


def _cpu() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0]} ({os.cpu_count()} logical)" if names else platform.processor() or platform.machine()
