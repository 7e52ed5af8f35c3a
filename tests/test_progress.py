"""Bars are for people: nothing is written where no terminal is."""

from __future__ import annotations

import pytest

from dlite.progress import TrainBar, counting_bar
from dlite.train.loop import Progress


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with counting_bar("answers", 3) as advance:
        advance(1, "4 tokens")
    with TrainBar() as bar:
        bar.show(Progress("stable", 1, 2, 0.5, 100.0, 1.5))
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_what_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with TrainBar() as bar:
        bar.show(Progress("stable", 1, 2, 0.5, 100.0, 1.5))
    out, err = capsys.readouterr()
    assert out == ""
    assert [word in err for word in ("stable", "1/2", "loss 0.500", "100 anchors/s", "tau 1.50")] == [True] * 5
