"""The raw outputs of a target's layers inside SGLang, the last one too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dlite.errors import TargetError

PARTS = ("model.embed_tokens", "model.norm")


def check_target(model: Any) -> None:
    """Refuse a target that cannot hand out its layers. Errors: ``TargetError``."""
    missing = [part for part in PARTS if _part(model, part) is None]
    if not hasattr(model, "set_eagle3_layers_to_capture"):
        missing.append("set_eagle3_layers_to_capture")
    if missing:
        raise TargetError(
            f"{type(model).__name__} has no {' and no '.join(missing)} in SGLang, which a DLite reads its taps through. Expected "
            "a decoder such as Llama or Qwen3. Serve it without a drafter."
        )


class Taps:
    """Makes a model add the raw outputs of some layers to its logits, in the order of the layers.

    SGLang takes a layer's output where the next layer begins, so that it has none for the last layer: this one is the sum
    that the final norm leaves beside its result. Two forward hooks add it behind the others.
    """

    def __init__(self, model: Any, taps: Sequence[int], num_layers: int) -> None:
        check_target(model)
        order = sorted(taps)
        self._order = [order.index(tap) for tap in taps]
        self._last: Tensor | None = None
        model.set_eagle3_layers_to_capture([tap for tap in order if tap < num_layers - 1])
        if order[-1] == num_layers - 1:
            model.model.norm.register_forward_hook(self._keep)
            model.model.register_forward_hook(self._add)

    def read(self, hidden: Tensor | None, rows: int, wanted: Tensor | None = None) -> Tensor:
        """The taps [B,n,D] in the drafter's own order, from the engine's rows [rows,n*D]: all, or those at wanted [B]."""
        if hidden is None or len(hidden) != rows:
            found = "no hidden states" if hidden is None else f"hidden states of {len(hidden)} rows"
            raise RuntimeError(
                f"SGLang returned {found}, expected {rows} rows: see docs/serving.md for what is supported"
            )
        picked = hidden if wanted is None else hidden[wanted]
        return picked.view(len(picked), len(self._order), -1)[:, self._order]

    def _keep(self, norm: Any, given: tuple[Tensor, ...], result: Any) -> None:
        """(normalised, what was normalised) where the norm adds the residual itself, else the input is it."""
        raw = result[1] if isinstance(result, tuple) else given[0]
        self._last = raw.clone()  # the engine may write there again

    def _add(self, decoder: Any, given: Any, result: Any) -> Any:
        hidden, others = result if isinstance(result, tuple) else (result, [])
        others.append(self._last)
        self._last = None
        return hidden, others


def lend_embedding(model: Any, size: int) -> Any:
    """The target's embedding: token ids [...] -> [...,D]."""

    def embed(tokens: Tensor) -> Tensor:
        words: Tensor = model.model.embed_tokens(tokens.flatten())
        return words.view(*tokens.shape, size)

    return embed


def lend_norm(model: Any, size: int) -> Any:
    """The target's final norm, past the hooks: [...,D] -> [...,D]."""

    def final_norm(tap: Tensor) -> Tensor:
        normed: Tensor = model.model.norm.forward(tap.reshape(-1, size).contiguous())
        return normed.view(tap.shape)

    return final_norm


def pivots(extend_lens: Sequence[int], device: torch.device) -> Tensor:
    """The last row of each request in a packed batch of prompts: [B]."""
    return torch.tensor(extend_lens, device=device).cumsum(0) - 1


def _part(model: Any, path: str) -> Any:
    for name in path.split("."):
        model = getattr(model, name, None)
    return model
