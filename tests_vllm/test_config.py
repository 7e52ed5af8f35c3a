"""vLLM's own reading of drafter folders: ours and the published layout, with nothing changed in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from vllm.plugins import load_general_plugins

from dlite.checkpoint import save_drafter
from dlite.target.load import load_target
from tests.data.support import target_folder
from tests.support import tiny_drafter

OURS: dict[str, Any] = {"draft_vocab": (1, 3, 4, 7, 9)}
PUBLISHED: dict[str, Any] = {"placeholder": "token", "last_tap": "normed"}


@pytest.mark.parametrize(
    ("options", "published"),
    [(OURS, False), ({"confidence": True}, False), (PUBLISHED, True), (PUBLISHED | {"anchor_group": 2}, True)],
)
def test_a_folder_as_vllm_reads_it(tmp_path: Path, options: dict[str, Any], published: bool) -> None:
    load_general_plugins()  # as every process of an engine does: this finds the entry point
    folder = str(target_folder(tmp_path / "target"))
    loaded = load_target(folder)
    drafter = tiny_drafter(loaded, **options)
    save_drafter(drafter, tmp_path / "drafter", loaded.info, published=published)
    target = ModelConfig(folder, dtype="float32", max_model_len=280)
    speculative = SpeculativeConfig(
        method="dflash",
        model=str(tmp_path / "drafter"),
        num_speculative_tokens=4,
        target_model_config=target,
        target_parallel_config=ParallelConfig(),
    )
    draft = speculative.draft_model_config
    assert draft.architectures == ["DFlashDLiteDraftModel"]
    assert draft.hf_config.eagle_aux_hidden_state_layer_ids == [tap + 1 for tap in drafter.taps]
    assert draft.max_model_len == 280
    assert speculative.parallel_drafting
