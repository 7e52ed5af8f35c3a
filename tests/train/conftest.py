"""Runs without TensorBoard, which takes longer to load than they take."""

from __future__ import annotations

import pytest

from dlite.train import record


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "tensorboard", lambda folder: None)
