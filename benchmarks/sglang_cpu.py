"""What SGLang 0.5.23 lacks on a machine without CUDA, for ``sglang_check.py`` only: imported first, in every process.

Its wheel needs packages that exist for CUDA alone. They are never called on a CPU, except two index kernels, which stand
here in torch; importing them is what must not fail. Two hooks let the attention written in torch verify drafts:
it knows no TARGET_VERIFY, which is a causal extension of every request by the same number of rows.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CUDA_ONLY = (
    "cutlass", "cuda", "deep_ep", "deep_gemm", "flash_attn_4", "flashinfer", "humming", "quack", "sgl_deep_ep", "sgl_kernel",
    "tilelang", "torch_memory_saver", "torchaudio", "torchvision",
)  # fmt: skip
UNUSED = ("IPython", "interegular", "modelscope", "outlines", "soundfile", "tilelang")
SETTINGS = {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}


class _Name(type):
    """A class that stands for anything of a package that is not there."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


def _stand_in(name: str) -> Any:
    """A class that takes anything; its objects return what they are called with, as a decorator would."""
    return _Name(name, (), {"__init__": _accept, "__call__": _same})


def _accept(self: Any, *args: Any, **options: Any) -> None:
    pass


def _same(self: Any, *args: Any, **options: Any) -> Any:
    return args[0] if args else None


class _Package(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        missing = name.partition(".")[0] in MISSING
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Package(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "sgl_kernel":
            module.__dict__.update(
                assign_req_to_token_pool_cpu=assign_req_to_token_pool,
                assign_extend_cache_locs_cpu=assign_extend_cache_locs,
            )


def assign_req_to_token_pool(slots: Tensor, table: Tensor, start: Tensor, end: Tensor, places: Tensor, _: int) -> None:
    """Write packed places into the rows of the table, from start to end of each."""
    first = 0
    for slot, low, high in zip(slots.tolist(), start.tolist(), end.tolist(), strict=True):
        table[slot, low:high] = places[first : first + high - low].to(table.dtype)
        first += high - low


def assign_extend_cache_locs(slots: Tensor, table: Tensor, start: Tensor, end: Tensor, out: Tensor, _: int) -> None:
    """Pack the places that the rows of the table hold from start to end."""
    first = 0
    for slot, low, high in zip(slots.tolist(), start.tolist(), end.tolist(), strict=True):
        out[first : first + high - low] = table[slot, low:high].to(out.dtype)
        first += high - low


def verify_as_extend(
    original: Any, backend: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, *args: Any, **options: Any
) -> Any:
    """Around the forward of the attention in torch: a verification is an extension by the rows of each request."""
    if not batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, batch, *args, **options)
    rows, saved = batch.spec_info.draft_token_num, (batch.seq_lens, batch.extend_prefix_lens, batch.extend_seq_lens)
    batch.extend_prefix_lens, batch.extend_seq_lens = saved[0], torch.full_like(saved[0], rows)
    batch.seq_lens = saved[0] + rows
    try:
        return original(backend, q, k, v, layer, batch, *args, **options)
    finally:
        batch.seq_lens, batch.extend_prefix_lens, batch.extend_seq_lens = saved


def no_copies(pool: Any) -> None:
    """In place of the set-up of a Triton kernel that moves keys and values of trees of drafts."""
    pool._kv_copy_config = None


MISSING = {name for name in (*CUDA_ONLY, *UNUSED) if importlib.util.find_spec(name) is None}


def install() -> None:
    """Make SGLang importable in this process and hook what a CPU needs."""
    os.environ.update(SETTINGS)
    from transformers.utils import import_utils

    for name in ("is_torchvision_available", "is_torchaudio_available"):
        getattr(import_utils, name, bool)()  # asked before they seem to be there; the answer is kept
    sys.meta_path.append(_Finder())
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    attention = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend.forward_extend"
    HookRegistry.register(attention, verify_as_extend, HookType.AROUND)
    pool = "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._init_kv_copy_and_warmup"
    HookRegistry.register(pool, no_copies, HookType.REPLACE)
