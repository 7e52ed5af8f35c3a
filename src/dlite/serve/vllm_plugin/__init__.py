"""DLite in vLLM: the entry point ``vllm.general_plugins``, called by every process of an engine.

What is changed in vLLM, once ``hooks`` has found it as expected: the names ``DLiteDraftModel`` are known to its registry,
the config of such a drafter says what the method dflash asks for, and where a dflash proposer (V1 runner) or speculator
(V2) is made for such a drafter, ours is made. Nothing else is touched, and nothing at all for other drafters.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

from dlite.serve.guard import enter
from dlite.serve.vllm_plugin.hooks import HOOKS, when_imported

ARCHITECTURES = ("DLiteDraftModel", "DFlashDLiteDraftModel")  # vLLM's EAGLEConfig puts DFlash before ours
V1, V2 = "vllm.v1.spec_decode.dflash", "vllm.v1.worker.gpu.spec_decode"
RUNNER = "vllm.v1.worker.gpu.model_runner"

_log = logging.getLogger("vllm.dlite")  # below vLLM's own logger, which has a handler
_registered = False


def register() -> None:
    """Let vLLM load DLite drafters. Never raises: where it cannot, it says so in one line and changes nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    enter("vllm", HOOKS, _register, _log, "DLite drafters")


def is_ours(vllm_config: Any) -> bool:
    """Does this engine speculate with a DLite?"""
    draft = vllm_config.speculative_config.draft_model_config
    return draft is not None and not set(ARCHITECTURES).isdisjoint(draft.architectures or ())


def _register() -> None:
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.model_executor.models.registry import ModelRegistry

    from dlite.serve.vllm_plugin.config import DLiteModelConfig
    from dlite.serve.vllm_plugin.model import DLiteDraftModel

    for name in ARCHITECTURES:
        ModelRegistry.register_model(
            name, DLiteDraftModel
        )  # the class: a dotted name is inspected in a process of its own
    MODELS_CONFIG_MAP[ARCHITECTURES[0]] = DLiteModelConfig
    when_imported(V1, _hook_v1)
    when_imported(V2, _hook_v2)


def _hook_v1(module: ModuleType) -> None:
    """The runner tests ``isinstance(drafter, DFlashProposer)``: ours is a subclass that the class itself hands out."""
    theirs = module.DFlashProposer

    def new(kind: type, vllm_config: Any, *arguments: Any, **named: Any) -> Any:
        if kind is theirs and is_ours(vllm_config):
            from dlite.serve.vllm_plugin.v1 import DLiteProposer

            kind = DLiteProposer
        return object.__new__(kind)

    theirs.__new__ = staticmethod(new)


def _hook_v2(module: ModuleType) -> None:
    """The runner imports the function by name: behind this, unless it was here first."""
    theirs = module.init_speculator

    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        if vllm_config.speculative_config.method == "dflash" and is_ours(vllm_config):
            from dlite.serve.vllm_plugin.v2 import DLiteSpeculator

            return DLiteSpeculator(vllm_config, device)
        return theirs(vllm_config, device, req_states)

    module.init_speculator = init_speculator  # type: ignore[attr-defined]
    runner = sys.modules.get(RUNNER)
    if runner is not None:
        runner.init_speculator = init_speculator  # type: ignore[attr-defined]
