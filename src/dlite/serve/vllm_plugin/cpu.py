"""A fault of vLLM 0.32 and 0.33 on CPUs, mended inside the worker that runs a DLite, and only while it is there.

``expand_batch_to_tokens`` spreads a value per request (temperature, top-k, top-p) over the rows of its drafts. Its CPU form
(``vllm/utils/cpu_triton_utils.py``) hands its kernel an int64 copy of an output that is not int64, so that the values
arrive in the copy and the output stays uninitialised: every sampled request with drafts then has a random temperature.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

_log = logging.getLogger("vllm.dlite")


def mend_sampling() -> bool:
    """Replace the function by plain PyTorch, if it fails a probe. True: it did."""
    from vllm.v1.sample import rejection_sampler

    if _holds(rejection_sampler.expand_batch_to_tokens):
        return False
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    _log.info("vLLM's CPU form of expand_batch_to_tokens is faulty; dlite's plug-in replaces it in this process.")
    return True


def _holds(function: object) -> bool:
    """Is the function right for floats and for ints?"""
    counts = torch.tensor([1, 3, 6], dtype=torch.int32)
    for values in (torch.tensor([0.5, 0.25, 2.0]), torch.tensor([7, 0, 9], dtype=torch.int32)):
        if not torch.equal(function(values, counts, 6), expand_batch_to_tokens(values, counts, 6)):  # type: ignore[operator]
            return False
    return True


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """x [B] repeated as often as each request has rows, ends cu_num_tokens [B]; one value replaced by another: [num_tokens]."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    if replace_from != replace_to:
        x = x.masked_fill(x == replace_from, replace_to)
    return torch.repeat_interleave(x, counts, output_size=num_tokens)
