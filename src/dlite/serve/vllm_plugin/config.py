"""What vLLM's method dflash asks of a drafter's config, derived from a DLite's: no file of the drafter is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlite.errors import CheckpointError


class DLiteModelConfig:
    """vLLM's hook for configs by architecture (``VerifyAndUpdateConfig``), called on the draft's ``ModelConfig``."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Derive the layers to capture. A DLite's positions are local: it drafts at any length that the target is served at."""
        hf_config = model_config.hf_config
        part = getattr(hf_config, "dlite_config", None)
        if not isinstance(part, dict) or not part.get("target_layer_ids"):
            raise CheckpointError(
                f"the config.json of {model_config.model} has no dlite_config.target_layer_ids. Expected a DLite drafter "
                "written by dlite, or a published dlite_v1. Give such a folder."
            )
        for name, value in derived(part["target_layer_ids"], part.get("mask_token_id", 0)).items():
            setattr(hf_config, name, value)
        if model_config.spec_target_max_model_len:
            model_config.max_model_len = model_config.spec_target_max_model_len

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Only ever called for a target; a DLite is none."""


def derived(taps: Sequence[int], mask_token_id: int) -> dict[str, Any]:
    """vLLM's id k is the state behind k layers, before any final norm: our tap plus one. It hands them out ascending."""
    if list(taps) != sorted(set(taps)):
        raise CheckpointError(
            f"taps {list(taps)} are not ascending. vLLM captures layers in ascending order, each once."
        )
    return {
        "eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in taps],
        "dflash_config": {"mask_token_id": mask_token_id, "target_layer_ids": list(taps), "causal": False},
    }
