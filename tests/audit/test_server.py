from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dlite.audit.server import BLOCKS, Count, read_server_log, server_figures
from dlite.errors import DataError
from dlite.traces.skipped import Skipped

METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 50.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 450.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1.2e+02
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 60
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 15
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 45
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} NaN
other 3
"""


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "log"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_rounds_and_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"context": 100, "proposed": 4, "accepted": 2},
        {"context": 5000, "proposed": 4, "accepted": 0},
        {"context": 5000, "rounds": 10, "proposed": 40, "accepted": 15, "accepted_by_position": [9, 6]},
        {"rounds": 2, "proposed": 8, "accepted": 3},
    )
    counts = read_server_log(path, Skipped())
    assert counts[0] == Count(100, 1, 4, 2, (1, 1))
    assert counts[3] == Count(None, 2, 8, 3, ())
    rows = server_figures(counts, seed=0)
    assert [(r.by, r.group) for r in rows] == [("all", "all"), ("context", "below 1K"), ("context", "4-8K")]
    whole = rows[0]
    assert (whole.tokens, whole.rounds) == (34, 14)
    assert whole.tau.value == pytest.approx(34 / 14)
    assert whole.acceptance == pytest.approx([10 / 12, 7 / 12])  # of the rounds whose positions are known
    assert rows[2].tau.value == pytest.approx(26 / 11)
    assert whole.speedup is None


def test_vllms_counters_of_all_engines_together(tmp_path: Path) -> None:
    (count,) = read_server_log(write(tmp_path, METRICS), Skipped())
    assert count == Count(None, 150, 450, 120, (75, 45))
    row = server_figures([count], seed=0)[0]
    assert row.tau.value == pytest.approx(1.8)
    assert row.acceptance == pytest.approx([0.5, 0.3])


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    good = {"context": 1, "proposed": 2, "accepted": 1}
    bad = [
        {**good, "accepted": 3}, {**good, "accepted": -1}, {**good, "proposed": 1.5}, {**good, "context": "9"},
        {**good, "rounds": 0}, {**good, "accepted_by_position": "x"}, {"context": 1}, {**good, "proposed": True}, "{broken",
    ]  # fmt: skip
    skipped = Skipped()
    assert len(read_server_log(write(tmp_path, good, *bad), skipped)) == 1
    assert skipped.total == len(bad)


@pytest.mark.parametrize("rows", [[""], ["no counters here"], ['{"a": 1}'], [METRICS.replace("spec_decode", "other")]])
def test_a_file_without_counts_is_one_sentence(tmp_path: Path, rows: list[str]) -> None:
    with pytest.raises(DataError, match="has no counts of drafts. Expected rows of JSON such as"):
        read_server_log(write(tmp_path, *rows), Skipped())


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_server_log(tmp_path / "none", Skipped())


def test_a_long_log_is_resampled_in_blocks() -> None:
    counts = [Count(9, 1, 4, i % 3, (1,) * (i % 3)) for i in range(20 * BLOCKS)]
    row = server_figures(counts, seed=0)[0]
    assert row.tau.value == pytest.approx(2, abs=1e-3)
    assert 1.9 < row.tau.low < row.tau.value < row.tau.high < 2.1
