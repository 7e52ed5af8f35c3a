"""DLite in SGLang: the entry point ``sglang.srt.plugins``, called by every process of a server.

It adds the speculative algorithm DLITE through SGLang's own registry, and one hook that refuses the requests which DLITE
cannot serve exactly. Other algorithms are left alone.
"""

from __future__ import annotations

import logging
from typing import Any

from dlite.serve.guard import enter
from dlite.serve.sglang_plugin.seams import SEAMS

NAME = "DLITE"
VALIDATE = "sglang.srt.managers.scheduler.Scheduler.validate_dllm_request"

_log = logging.getLogger("sglang.dlite")
_registered = False


def register() -> None:
    """Add the algorithm, once. Never raises: where it cannot, it says so in one line and changes nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    enter("sglang", SEAMS, _register, _log, NAME)


def refuse(original: Any, scheduler: Any, request: Any) -> str | None:
    """Around the scheduler's check of a request: SGLang's own word first, then why DLITE cannot serve it."""
    from dlite.serve.sglang_plugin.limits import refusal

    reason: str | None = original(scheduler, request)
    if reason is None and getattr(scheduler.spec_algorithm, "name", None) == NAME:
        reason = refusal(request)
    return reason


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from dlite.serve.sglang_plugin.algorithm import DLiteAlgorithm, worker_class

    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DLiteAlgorithm)(worker_class)
    HookRegistry.register(VALIDATE, refuse, HookType.AROUND)
