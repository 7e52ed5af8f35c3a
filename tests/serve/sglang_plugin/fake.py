"""SGLang as the worker sees it, without SGLang: its modules by name, and a model that hands out its layers as SGLang's do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dlite.target.base import Target

ENGINE_SIDE = ("dlite.serve.sglang_plugin.algorithm", "dlite.serve.sglang_plugin.worker")  # what imports SGLang


class Base:
    """``BaseSpecWorker``."""

    @property
    def target_worker(self) -> Any:
        return self._target_worker  # type: ignore[attr-defined]


class Input:
    """``SpecInput``."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind


@dataclass
class VerifyInput:
    """``DFlashVerifyInput``: what the worker hands over for a verification, seen by the fake target."""

    draft_token: Tensor
    positions: Tensor
    draft_token_num: int

    def prepare_for_verify(self, batch: Any, worker: Any) -> tuple[Any, bool]:
        seen = SimpleNamespace(
            rows=self, slots=batch.req_pool_indices, places=batch.out_cache_loc, lengths=batch.seq_lens,
            bound=batch.seq_lens_cpu.tolist(), total=batch.seq_lens_sum,
        )  # fmt: skip
        batch.forward_mode = None  # the scheduler puts back what a round changed
        return seen, False


@contextmanager
def modules(settings: Any, mask: Callable[..., Any] | None = None) -> Iterator[None]:
    """The modules that the plug-in imports, while this runs."""
    names: dict[str, dict[str, Any]] = {
        "sglang": {"__path__": ["/nowhere"]},
        "sglang.srt.layers.logprob_processor": {"compute_spec_logprobs": logprobs},
        "sglang.srt.managers.scheduler": {"GenerationBatchResult": lambda **values: SimpleNamespace(**values)},
        "sglang.srt.managers.overlap_utils": {"FutureMap": lambda *values: values},
        "sglang.srt.model_executor.forward_batch_info": {"CaptureHiddenMode": IntEnum("Capture", ["LAST", "FULL"])},
        "sglang.srt.plugins.hook_registry": {"HookRegistry": Hooks, "HookType": IntEnum("HookType", ["AROUND"])},
        "sglang.srt.runtime_context": {
            "get_device": lambda: SimpleNamespace(device="cpu"),
            "get_model": lambda: settings,
            "get_spec": lambda: settings,
        },
        "sglang.srt.speculative.base_spec_worker": {"BaseSpecWorker": Base},
        "sglang.srt.speculative.dflash_info": {"DFlashVerifyInput": VerifyInput},
        "sglang.srt.speculative.spec_info": {
            "SpecInput": Input,
            "SpecInputType": IntEnum("Kind", ["DFLASH_DRAFT"]),
            "SpeculativeAlgorithm": Algorithms,
        },
        "sglang.srt.speculative.spec_registry": {"CustomSpecAlgo": Algorithm},
        "sglang.srt.speculative.spec_utils": {
            "GrammarTree": SimpleNamespace(from_linear_chain=lambda candidates: candidates.tolist()),
            "build_grammar_vocab_mask": mask,
            "record_stream_for_v2_verify": lambda batch, verify_input, stream: None,
        },
    }
    for name in ENGINE_SIDE:
        sys.modules.pop(name, None)
    for name, values in names.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        sys.modules[name] = module
    streams = torch.get_device_module
    torch.get_device_module = lambda device=None: SimpleNamespace(current_stream=lambda: None)
    try:
        yield
    finally:
        torch.get_device_module = streams
        for name in (*names, *ENGINE_SIDE):
            sys.modules.pop(name, None)


def logprobs(batch: Any, output: Any, tokens: Tensor, *, chain_stride: int) -> None:
    """``compute_spec_logprobs``: of the tokens, row by row of the verification."""
    law = output.next_token_logits.log_softmax(-1)
    output.next_token_logprobs = law.gather(1, tokens[:, None]).view(-1, chain_stride)


class Algorithm:
    """``CustomSpecAlgo``."""

    def __init__(self, *, name: str, supports_overlap: bool) -> None:
        self.name, self.supports_overlap = name, supports_overlap


class Algorithms:
    """``SpeculativeAlgorithm``: what was registered."""

    known: dict[str, tuple[Algorithm, Any]]

    @classmethod
    def register(cls, name: str, *, supports_overlap: bool, spec_class: type[Algorithm]) -> Any:
        def add(factory: Any) -> Any:
            cls.known[name] = (spec_class(name=name, supports_overlap=supports_overlap), factory)
            return factory

        return add


class Hooks:
    """``HookRegistry``: what was hooked."""

    known: dict[str, Any]

    @classmethod
    def register(cls, target: str, hook: Any, kind: Any) -> None:
        cls.known[target] = hook


class Norm(nn.Module):
    """A final norm that adds the residual itself and returns the sum beside its result, as SGLang's fused one does."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            return self.target.final_norm(x)
        return self.target.final_norm(x + residual), x + residual


class Decoder(nn.Module):
    """Hidden states of one sequence, and the inputs of the layers named in ``layers_to_capture``."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target, self.norm = target, Norm(target)
        self.embed_tokens = _Embedding(target)
        self.layers_to_capture: list[int] = []

    def forward(self, tokens: Sequence[int]) -> Any:
        layers = range(self.target.info.num_layers)
        cache = self.target.new_cache(1, len(tokens))
        output = self.target.forward(torch.tensor([list(tokens)]), cache, 0, tuple(layers), "all")
        self.logits, raw = output.logits[0], output.taps[0]
        others = [raw[:, layer - 1] for layer in self.layers_to_capture if layer < len(layers)]
        hidden, summed = self.norm(raw[:, -1] * 0.75, raw[:, -1] * 0.25)
        summed.zero_()  # borrowed storage: the engine writes there again
        return (hidden, others) if others else hidden


class Model(nn.Module):
    """A causal model that captures layers on request."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.model = Decoder(target)

    def set_eagle3_layers_to_capture(self, layers: Sequence[int]) -> None:
        self.model.layers_to_capture = [layer + 1 for layer in layers]

    def forward(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits [R,V] and captured states [R,n*D] of a whole sequence."""
        _, captured = self.model(tokens)
        return self.model.logits, torch.cat(captured, -1)


class _Embedding(nn.Module):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self.target = target

    def forward(self, tokens: Tensor) -> Tensor:
        return self.target.embed(tokens)


@dataclass
class TargetWorker:
    """``TpModelWorker``: slots hold the tokens that stand; a pass over more rows leaves them alone."""

    target: Target
    slots: int = 6
    random_seed: int = 7
    texts: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Model(self.target)
        width = self.target.info.context_length
        self.pool = SimpleNamespace(req_to_token=torch.arange(self.slots * width).view(self.slots, width))
        config = SimpleNamespace(hf_text_config=self.target.model.config)  # type: ignore[attr-defined]
        self.model_runner = SimpleNamespace(model=self.model, model_config=config, dtype=torch.float32)

    def get_memory_pool(self) -> tuple[Any, Any]:
        return self.pool, None

    def forward_batch_generation(self, batch: Any, forward_batch: Any = None, **options: Any) -> Any:
        if batch is None:
            return self._verify(forward_batch, options)
        assert options["capture_hidden_mode"].name == "LAST"
        logits, hidden = zip(*(self._last(slot) for slot in batch.req_pool_indices.tolist()), strict=True)
        output = SimpleNamespace(hidden_states=torch.stack(hidden), next_token_logits=torch.stack(logits))
        tokens = output.next_token_logits.argmax(-1).to(torch.int32)
        return SimpleNamespace(logits_output=output, next_token_ids=tokens)

    def _last(self, slot: int) -> tuple[Tensor, Tensor]:
        logits, hidden = self.model(self.texts[slot])
        return logits[-1], hidden[-1]

    def _verify(self, seen: Any, options: dict[str, Any]) -> Any:
        assert options == {"is_verify": True, "skip_attn_backend_init": True}
        n = seen.rows.draft_token_num
        logits, hidden = [], []
        for row, slot in enumerate(seen.slots.tolist()):
            length, text = int(seen.lengths[row]), self.texts[slot]
            places = slice(row * n, row * n + n)
            assert seen.rows.positions[places].tolist() == list(range(length, length + n))
            assert seen.places[places].tolist() == self.pool.req_to_token[slot, length : length + n].tolist()
            drafted = seen.rows.draft_token[places].tolist()
            assert drafted[0] == text[length], "the anchor is the newest token"
            assert len(text) == length + 1
            every, states = self.model([*text[:length], *drafted])
            logits.append(every[length:])
            hidden.append(states[length:])
        assert seen.bound == [int(x) + n for x in seen.lengths]
        assert seen.total == sum(seen.bound)
        output = SimpleNamespace(next_token_logits=torch.cat(logits).clone(), hidden_states=torch.cat(hidden))
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)
