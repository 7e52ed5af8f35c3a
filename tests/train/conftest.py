"""Runs without TensorBoard, which takes longer to load than they take."""

from __future__ import annotations

import pytest

from dlite.train import loop


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_tensorboard", lambda folder: None)
