"""Any decoder-only causal language model of transformers as a target: ragged cache, taps by hook, frozen weights."""

from __future__ import annotations

import hashlib
import inspect
import json
from typing import Any

import torch
from torch import Tensor, nn

from dlite.errors import TargetError
from dlite.nn.backbone import BackboneConfig, grouped_attention
from dlite.nn.cache import RaggedCache, causal_mask
from dlite.nn.cpu import freeze_for_cpu
from dlite.target.base import Rows, TargetInfo, TargetOutput
from dlite.target.lean import LeanDecoder

ATTENTION = "dlite_grouped"


class HFTarget:
    """A transformers model behind the ``Target`` protocol.

    ``freeze`` rewrites an fp32 model on a CPU for fast few-row passes; elsewhere it changes nothing.

    Taps are the raw residual stream at the output of a decoder layer, taken with forward hooks; unlike the last
    entry of ``output_hidden_states`` the last tap is *before* the final norm.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str, *, freeze: bool = True) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        decoder = model.get_decoder()
        self._layers: nn.ModuleList = _part(decoder, ("layers", "h"), name)
        self._norm: nn.Module = _part(decoder, ("norm", "final_layernorm", "ln_f"), name)
        config = model.config.get_text_config()
        self.device = next(model.parameters()).device
        self.dtype = next(model.parameters()).dtype
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._windows: dict[str, int | None] = {
            kind: (config.sliding_window if kind == "sliding_attention" else None)
            for kind in set(getattr(config, "layer_types", None) or ())
        }
        plain_window = None if self._windows else getattr(config, "sliding_window", None)
        self._window: int | None = plain_window  # Mistral: one window for every layer, without layer types
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._output_weight = model.get_output_embeddings().weight
        self._output_bias: Tensor | None = getattr(model.get_output_embeddings(), "bias", None)
        # Cohere multiplies its logits, Granite divides them.
        self._output_scale = float(
            getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
        )
        self._captured: dict[int, Tensor] = {}
        self._hooked: set[int] = set()
        self.info = TargetInfo(
            name=name,
            vocab_size=self._output_weight.shape[0],
            hidden_size=config.hidden_size,
            num_layers=len(self._layers),
            context_length=getattr(config, "max_position_embeddings", None) or 2048,
            stop_ids=_stop_ids(model, tokenizer),
            tokenizer_hash=tokenizer_hash(tokenizer),
            layer=_layer_sizes(config),
        )
        _use_grouped_attention(model)
        self._lean: LeanDecoder | None = None
        if freeze and freeze_for_cpu(model) and not self._window and LeanDecoder.fits(model, self._windows):
            self._lean = LeanDecoder(model)

    def new_cache(self, rows: int, length: int) -> RaggedCache:
        """An empty cache for ``rows`` requests of up to ``length`` positions."""
        return RaggedCache(len(self._layers), rows, length)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, cache: RaggedCache, first: int, taps: tuple[int, ...], rows: Rows
    ) -> TargetOutput:
        """Run tokens [B,R] behind what cache rows first..first+B-1 hold."""
        self._check_taps(taps)
        batch, new = tokens.shape
        cache.place(first, batch, new)
        lengths = cache.lengths[first : first + batch]
        positions = torch.tensor(lengths, device=self.device)[:, None] + torch.arange(new, device=self.device)
        mask = self._mask(lengths, new, cache.visible)
        tokens = tokens.to(self.device)
        if self._lean is None:
            logits, captured = self._run_model(tokens, positions, cache, mask, taps, rows)
        else:
            hidden, captured = self._lean.forward(tokens, positions, cache, mask, set(taps))
            logits = self.model.get_output_embeddings()(hidden if rows == "all" else hidden[:, -1:])
        keep = slice(-1, None) if rows == "last" else slice(None)
        wanted = [captured[tap][:, keep] for tap in taps]
        stacked = torch.stack(wanted, 2) if wanted else logits.new_zeros(batch, new, 0, 0)[:, keep]
        return TargetOutput(logits.float(), stacked)

    def _run_model(
        self, tokens: Tensor, positions: Tensor, cache: RaggedCache, mask: Any, taps: tuple[int, ...], rows: Rows
    ) -> tuple[Tensor, dict[int, Tensor]]:
        self._hook(taps)
        if mask is None:  # the model would build its own from None; an all-visible mask costs one small add
            mask = torch.zeros(1, 1, 1, cache.visible, dtype=self.dtype, device=self.device)
        output = self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            logits_to_keep=0 if rows == "all" else 1,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        captured, self._captured = self._captured, {}
        return output.logits, captured

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings as the first layer sees them (Gemma's scale included): [...] -> [...,D] fp32."""
        with torch.no_grad():
            return self.model.get_input_embeddings()(tokens.to(self.device)).float()  # type: ignore[no-any-return]

    def final_norm(self, tap: Tensor) -> Tensor:
        """The target's final norm, applied to a raw last tap: [...,D] -> [...,D]."""
        with torch.no_grad():
            return self._norm(tap.to(self.dtype))  # type: ignore[no-any-return]

    @torch.no_grad()
    def last_tap_logits(self, tap: Tensor, vocab: Tensor | None = None) -> Tensor:
        """Logits from the raw output of the last layer: [...,D] -> [...,V] fp32."""
        hidden = self.final_norm(tap)
        weight = self._output_weight if vocab is None else self._output_weight[vocab]
        bias = self._output_bias if self._output_bias is None or vocab is None else self._output_bias[vocab]
        logits = nn.functional.linear(hidden, weight, bias).float() * self._output_scale
        return logits if self._softcap is None else torch.tanh(logits / self._softcap) * self._softcap

    def output_weight(self) -> tuple[Tensor, Tensor]:
        """(lm_head [V,D], final norm scale [D]), fp32. The scale is measured, so Gemma's 1 + w needs no special case."""
        probe = torch.ones(1, self.info.hidden_size, device=self.device, dtype=self.dtype)
        return self._output_weight.float(), self._norm(probe)[0].float()

    def _check_taps(self, taps: tuple[int, ...]) -> None:
        bad = [tap for tap in taps if not 0 <= tap < len(self._layers)]
        if bad:
            raise TargetError(
                f"tap {bad[0]} does not exist in {self.info.name}, which has layers 0 to {len(self._layers) - 1}. "
                "Use a drafter trained for this target."
            )

    def _hook(self, taps: tuple[int, ...]) -> None:
        for tap in set(taps) - self._hooked:
            self._layers[tap].register_forward_hook(self._keeper(tap))
            self._hooked.add(tap)

    def _keeper(self, tap: int) -> Any:
        def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self._captured[tap] = output[0] if isinstance(output, tuple) else output

        return keep

    def _mask(self, lengths: list[int], new: int, visible: int) -> Any:
        def make(window: int | None) -> Tensor | None:
            everything = new == 1 and min(lengths) == max(lengths) and (window is None or visible <= window)
            return None if everything else causal_mask(lengths, new, visible, self.dtype, self.device, window)

        if len(self._windows) > 1 or any(self._windows.values()):
            masks = {kind: make(window) for kind, window in self._windows.items()}
            whole = torch.zeros(1, 1, 1, visible, dtype=self.dtype, device=self.device)
            return {kind: whole if mask is None else mask for kind, mask in masks.items()}
        return make(self._window)


def load_hf(path: str, *, name: str | None = None, device: str = "cpu", dtype: torch.dtype = torch.float32) -> HFTarget:
    """Load a hub id or a folder of safetensors. Errors: ``TargetError`` with the reason transformers gives."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        model = model.to(device)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # transformers, safetensors and torch raise what they meet
        raise _unusable(path, error) from None
    return HFTarget(model, tokenizer, name or path)


def read_info(path: str, name: str) -> TargetInfo:
    """A target's sizes from its config alone, so without stop tokens and tokenizer hash. Errors: ``TargetError``."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path).get_text_config()
    except Exception as error:
        raise _unusable(path, error) from None
    return info_of(config, name)


def info_of(config: Any, name: str) -> TargetInfo:
    """The sizes in a config of transformers."""
    context = getattr(config, "max_position_embeddings", None) or 2048
    sizes = (config.vocab_size, config.hidden_size, config.num_hidden_layers, context)
    return TargetInfo(name, *sizes, frozenset(), "", _layer_sizes(config))


def _unusable(path: str, error: Exception) -> TargetError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return TargetError(
        f"no usable target at {path!r}: {reason} Expected a Hugging Face hub id, a folder with config.json and "
        "safetensors, a .gguf file, or a built-in name such as smollm2-135m."
    )


def tokenizer_hash(tokenizer: Any) -> str:
    """Sixteen hex digits of the token table, equal for equal vocabularies; empty without a tokenizer."""
    if tokenizer is None:
        return ""
    table = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def _use_grouped_attention(model: Any) -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)
    model.config._attn_implementation = ATTENTION
    model.config.get_text_config()._attn_implementation = ATTENTION


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    scaling = options.get("scaling")
    if scaling is not None:  # SDPA divides by sqrt(d): fold the model's own scale into the query
        query = (
            query * (scaling * query.shape[-1] ** 0.5) if abs(scaling * query.shape[-1] ** 0.5 - 1) > 1e-9 else query
        )
    return grouped_attention(query, key, value, attention_mask).transpose(1, 2), None


def _part(decoder: Any, names: tuple[str, ...], model: str) -> Any:
    for name in names:
        if hasattr(decoder, name):
            return getattr(decoder, name)
    raise TargetError(
        f"{model} keeps its layers under none of {', '.join(names)}. Expected a decoder-only model such as Llama, Qwen "
        "or Gemma."
    )


def _layer_sizes(config: Any) -> BackboneConfig:
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return BackboneConfig(
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0),
    )


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), model.config, tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update(ids if isinstance(ids, list) else [ids] if ids is not None else [])
    return frozenset(found)
