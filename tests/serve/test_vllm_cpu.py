"""The fault of vLLM's sampling on CPUs: what the function promises, and that it is replaced only while it is broken."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlite.serve.vllm_plugin.cpu import expand_batch_to_tokens, mend_sampling


def test_expanding_against_a_loop() -> None:
    counts, values = [2, 0, 3], [0.5, 0.25, 0.0]
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    expected = [value for value, count in zip(values, counts, strict=True) for _ in range(count)]
    assert expand_batch_to_tokens(torch.tensor(values), ends, 5).tolist() == expected
    assert expand_batch_to_tokens(torch.tensor(values), ends, 5, 0, 1).tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("fault", [None, "floats", "ints"])
def test_sampling_is_mended_only_while_it_is_broken(monkeypatch: pytest.MonkeyPatch, fault: str | None) -> None:
    def theirs(x: torch.Tensor, cu: torch.Tensor, total: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        right = expand_batch_to_tokens(x, cu, total, replace_from, replace_to)
        wrong = fault == ("floats" if x.is_floating_point() else "ints")
        return right + 1 if wrong else right

    module = SimpleNamespace(expand_batch_to_tokens=theirs)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample", SimpleNamespace(rejection_sampler=module))
    assert mend_sampling() == (fault is not None)
    assert module.expand_batch_to_tokens is (theirs if fault is None else expand_batch_to_tokens)
