"""dlite: train, measure and serve history-free draft models for speculative decoding."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["DliteError", "Request", "SamplingParams", "generate", "generate_batch", "load_drafter", "load_target"]

_HOMES = {
    "DliteError": "dlite.errors",
    "Request": "dlite.engine.request",
    "SamplingParams": "dlite.sampling",
    "generate": "dlite.api",
    "generate_batch": "dlite.api",
    "load_drafter": "dlite.api",
    "load_target": "dlite.api",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when first used: importing dlite does nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dlite' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
