"""Everything dlite can say to a person who gave it something it cannot use.

Every message says what was found, what was expected, and what to do. The command line prints it without a
traceback and exits with status 2; a fault of our own keeps its traceback.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class DliteError(Exception):
    """A mistake in the input or the surroundings, in words for the person who can mend it."""


class CheckpointError(DliteError):
    """A drafter folder that is missing, damaged, or made for another target."""


class TargetError(DliteError):
    """A target model that cannot be found, read or used."""


class DataError(DliteError):
    """Prompts, conversations or features that cannot be used; says where in which file."""


class ConfigError(DliteError):
    """A recipe or a setting that does not fit; names the nearest valid one."""


class RequestError(DliteError):
    """One generation request that cannot be served: empty, too long, or with unusable settings."""


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DliteError(
            f"{module!r} is not installed ({error}). It is needed here. Install it with: pip install {module}, or dlite with its "
            f"extra [{extra}]."
        ) from None
