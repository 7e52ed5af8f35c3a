"""The V2 speculator with vLLM's own classes and made-up batches. Its Triton sampler and CUDA graphs have twins here: no GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.spec_decode import speculator as base

from dlite.drafters.dlite import DLite
from dlite.errors import ConfigError
from dlite.serve.drafting import Greedy, draft
from dlite.serve.vllm_plugin import v2
from dlite.target.toy import ToyTarget
from tests.support import tiny_drafter

TARGET = ToyTarget()
K, VOCAB, REQUESTS, TOKENS = 4, TARGET.info.vocab_size, 8, 40
Made = Callable[..., Any]


def config(sampled: bool) -> Any:
    """As much of vLLM's config as a speculator reads."""
    draft_model = SimpleNamespace(
        hf_config=SimpleNamespace(eagle_aux_hidden_state_layer_ids=[1, 2, 3, 4]),
        get_hidden_size=lambda: TARGET.info.hidden_size,
        get_vocab_size=lambda: VOCAB,
    )
    speculative = SimpleNamespace(
        method="dflash", num_speculative_tokens=K, draft_model_config=draft_model, use_local_argmax_reduction=False,
        enable_adaptive_verification=False, draft_sample_method="probabilistic" if sampled else "greedy",
    )  # fmt: skip
    return SimpleNamespace(
        speculative_config=speculative,
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS, max_num_batched_tokens=TOKENS),
        model_config=SimpleNamespace(
            dtype=torch.float32, head_dtype=torch.float32, use_fp64_gumbel=False, max_model_len=64
        ),
        parallel_config=SimpleNamespace(data_parallel_size=1, data_parallel_rank=0, decode_context_parallel_size=1),
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """A speculator with a tiny drafter opened in it."""
    monkeypatch.setattr(base, "_target_feeds_hc_residual", lambda config: False)
    monkeypatch.setattr(v2, "gumbel_sample", gumbel)

    def make(*, sampled: bool = False, **variant: Any) -> Any:
        one = v2.DLiteSpeculator(config(sampled), torch.device("cpu"))
        one.model = tiny_drafter(TARGET, **variant).freeze()
        return one

    return make


def gumbel(
    logits: Tensor, expanded_idx_mapping: Tensor, temperature: Tensor, seed: Tensor, pos: Tensor, apply_temperature: bool,
    is_drafting: bool, logits_cache: Tensor, logits_cache_col: Tensor, use_fp64: bool = False,
) -> Tensor:  # fmt: skip
    """vLLM's kernel as a loop: leaves the logits where rejection reads them, for rows of a request; draws by seed and place."""
    assert apply_temperature
    assert is_drafting
    assert logits.dtype == logits_cache.dtype
    assert logits.shape[1] == logits_cache.shape[2]
    drawn = []
    for row, request in enumerate(expanded_idx_mapping.tolist()):
        one = logits[row]
        if request >= 0:
            logits_cache[request, int(logits_cache_col)] = one
            if temperature[request] > 0:
                generator = torch.Generator().manual_seed(
                    int(seed[request]) * 10_000 + int(pos[row]) * 100 + int(logits_cache_col)
                )
                one = one / temperature[request] - torch.rand(VOCAB, generator=generator).log().neg().log()
        drawn.append(one.argmax())
    return torch.stack(drawn)


class Batch:
    """Requests in one step of the target: how many rows each had, how many of them were rejected, whether it sampled."""

    def __init__(
        self, rows: list[int], rejected: list[int], sampled: list[int], slots: list[int], seed: int = 0
    ) -> None:
        self.rows, self.slots = rows, slots
        generator = torch.Generator().manual_seed(seed)
        buffers = InputBuffers(REQUESTS, TOKENS, torch.device("cpu"))
        self.input = InputBatch.make_dummy(len(rows), sum(rows), buffers)
        self.input.query_start_loc = torch.tensor([0, *rows]).cumsum(0).to(torch.int32)
        self.input.idx_mapping = torch.tensor(slots)
        self.input.input_ids = torch.randint(VOCAB, (sum(rows),), generator=generator).to(torch.int32)
        self.input.positions = torch.randint(50, (sum(rows),), generator=generator)
        self.aux = [torch.randn(sum(rows), TARGET.info.hidden_size, generator=generator) for _ in range(4)]
        self.rejected, self.sampled = (
            torch.tensor(rejected, dtype=torch.int32),
            torch.tensor(sampled, dtype=torch.int32),
        )
        self.last = torch.randint(VOCAB, (REQUESTS, 1), generator=generator)
        self.prompt = torch.randint(VOCAB, (1, REQUESTS), generator=generator).to(torch.int32)
        self.temperature, self.seeds = torch.zeros(REQUESTS), torch.arange(REQUESTS) + 5

    def propose(self, one: Any, **options: Any) -> Tensor:
        """As the runner calls it."""
        return one.propose(
            self.input, None, None, torch.zeros(0), self.aux, self.sampled, self.rejected, self.last, self.prompt,
            self.temperature, self.seeds, **options,
        ).clone()  # fmt: skip

    def expected(self, network: DLite) -> Tensor:
        """Request by request, from the definition: the pivot is the last row that stands."""
        drafts, start = [], 0
        for i, count in enumerate(self.rows):
            pivot = start + count - 1 - int(self.rejected[i])
            slot, start = self.slots[i], start + count
            anchor = self.last[slot] if self.sampled[i] > 0 else self.prompt[0, slot : slot + 1].long()
            before = self.input.input_ids[pivot : pivot + 1].long()
            taps = torch.stack([states[pivot] for states in self.aux])[None]
            drafts.append(draft(network, taps, anchor, before, K, Greedy()))
        return torch.cat(drafts)


MIXED = ([5, 5, 9, 1], [4, 0, 0, 0], [1, 5, 0, 1], [6, 2, 0, 3])  # verified, all kept, a chunk of a prompt, a plain row


@pytest.mark.parametrize("variant", [{}, {"draft_vocab": (1, 3, 4, 7, 9)}, {"anchor_group": 2}, {"last_tap": "normed"}])
def test_each_request_drafts_from_its_own_pivot(made: Made, variant: dict[str, Any]) -> None:
    one, batch = made(**variant), Batch(*MIXED)
    assert torch.equal(batch.propose(one), batch.expected(one.model))


@pytest.mark.parametrize("variant", [{}, {"draft_vocab": (1, 3, 4, 7, 9)}])
def test_rejection_finds_the_logits_the_drafts_were_drawn_from(made: Made, variant: dict[str, Any]) -> None:
    one, batch = made(sampled=True, **variant), Batch(*MIXED)
    batch.temperature[[6, 0, 3]] = torch.tensor([0.7, 1.0, 2.0])
    tokens = batch.propose(one)
    assert torch.equal(tokens, batch.propose(one))  # the seed decides
    assert torch.equal(tokens[1], batch.expected(one.model)[1])  # request 2 is greedy
    heads = one.model.vocab.ids if one.model.vocab.ids is not None else torch.arange(VOCAB)
    for slot in (1, 4, 5, 7):
        assert not one.draft_logits[slot].any()
    for slot in batch.slots:
        cached = one.draft_logits[slot]
        assert torch.equal(cached.isfinite().all(0).nonzero()[:, 0], heads)
        assert torch.equal(cached[:, heads].isfinite(), torch.ones(K, len(heads), dtype=torch.bool))
    for i, slot in enumerate(batch.slots):  # the first draft depends on nothing drawn: its logits are the greedy ones
        assert int(one.draft_logits[slot, 0].argmax()) == int(batch.expected(one.model)[i, 0])


class Graphs:
    """vLLM's manager of graphs as it dispatches: sizes 1, 2, 4, 8, each a call of what was recorded."""

    def __init__(self, config: Any, device: Any, mode: Any, decode_query_len: int) -> None:
        assert decode_query_len == 1
        self.mode, self.recorded, self.ran = mode, {}, []

    def capture(self, create: Any, title: str) -> None:
        for size in (8, 4, 2, 1):
            desc = SimpleNamespace(cg_mode=CUDAGraphMode.FULL, num_reqs=size)
            create(desc, warmup=True)(CUDAGraphMode.NONE)
            self.recorded[size] = create(desc, warmup=False)

    def dispatch(self, num_reqs: int, num_tokens: int, uniform_token_count: int, num_active_loras: int) -> Any:
        assert num_tokens == num_reqs
        assert uniform_token_count == 1
        size = next((size for size in sorted(self.recorded) if size >= num_reqs), None)
        return SimpleNamespace(cg_mode=CUDAGraphMode.NONE if size is None else CUDAGraphMode.FULL, num_reqs=size)

    def run_fullgraph(self, desc: Any) -> None:
        self.ran.append(desc.num_reqs)
        self.recorded[desc.num_reqs](CUDAGraphMode.NONE)


@pytest.mark.parametrize("sampled", [False, True])
def test_graphs_of_larger_batches_give_the_same(made: Made, monkeypatch: pytest.MonkeyPatch, sampled: bool) -> None:
    """What other batches left in the padded rows reaches no request."""
    monkeypatch.setattr(v2, "CudaGraphManager", Graphs)
    one, eager = made(sampled=sampled), made(sampled=sampled)
    one.init_cudagraph_manager(CUDAGraphMode.FULL_AND_PIECEWISE)
    assert one.graphs.mode == CUDAGraphMode.FULL_DECODE_ONLY
    one.capture()
    if sampled:
        assert not one.draft_logits.any()  # capturing wrote to no request
    seven = ([5] * 7, [1] * 7, [4] * 7, [7, 0, 1, 2, 3, 4, 5])
    three, single = ([5, 5, 5], [0, 4, 2], [5, 1, 3], [1, 7, 4]), ([5], [2], [3], [2])
    for seed, (rows, rejected, kept, slots) in enumerate((seven, MIXED, three, single)):
        batch = Batch(rows, rejected, kept, slots, seed)
        batch.temperature[::2] = 0.8
        assert torch.equal(batch.propose(one), batch.propose(eager))
        if sampled:
            assert torch.equal(one.draft_logits, eager.draft_logits)
    assert one.graphs.ran == [8, 4, 4, 1]
    batch.propose(one, is_profile=True, dummy_run=True)
    assert one.graphs.ran == [8, 4, 4, 1]


def test_no_attention_is_prepared(made: Made) -> None:
    one = made()
    one.set_attn(None, None, None, None, None)
    assert one.attn_groups == []


def test_what_needs_a_confidence_or_a_mark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_target_feeds_hc_residual", lambda config: False)
    asked = config(sampled=False)
    asked.speculative_config.enable_adaptive_verification = True
    with pytest.raises(ConfigError, match="adaptive verification or a watermark"):
        v2.DLiteSpeculator(asked, torch.device("cpu"))


def test_no_graphs_where_the_target_has_none(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v2, "CudaGraphManager", Graphs)
    one = made()
    one.init_cudagraph_manager(CUDAGraphMode.PIECEWISE)
    assert one.graphs.mode == CUDAGraphMode.NONE


def test_a_dummy_run_touches_no_request(made: Made) -> None:
    one, batch = made(sampled=True), Batch(*MIXED)
    batch.temperature += 1
    batch.propose(one, dummy_run=True)
    assert not one.draft_logits.any()


def test_steps_without_drafts(made: Made) -> None:
    one, batch = made(), Batch(*MIXED)
    assert batch.propose(one, num_speculative_tokens=0).shape == (4, K)
    batch.aux = None
    with pytest.raises(RuntimeError, match="handed over no layers"):
        batch.propose(one)
