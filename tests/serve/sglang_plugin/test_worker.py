"""The worker in a scheduler's hands, on a real tiny target: greedy text is plain decoding's, whatever the batch does."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dlite.checkpoint import save_drafter
from dlite.engine.request import Request
from dlite.errors import CheckpointError, ConfigError, TargetError
from dlite.target.hf import HFTarget
from tests.serve.sglang_plugin import fake
from tests.serve.sglang_plugin.schedule import Scheduler
from tests.serve.sglang_plugin.test_law import ALL, asked, info
from tests.support import decode, plain, tiny_drafter, tiny_model

PROMPTS = ([5, 9, 2, 11], [7, 3, 3, 8, 1, 6], [4, 12])
K = 4
Start = Callable[..., Scheduler]


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return HFTarget(tiny_model("llama", context=64), None, "llama")


@pytest.fixture
def start(target: HFTarget, tmp_path: Path) -> Iterator[Start]:
    """Makes a worker of a drafter for the target, in a scheduler."""
    with ExitStack() as stack:

        def make(*, overlap: bool = False, rows: int = K + 1, mask: Any = None, **options: Any) -> Scheduler:
            save_drafter(tiny_drafter(target, K=K, **options), tmp_path / "drafter", target.info)
            settings = SimpleNamespace(
                speculative_num_draft_tokens=rows,
                model_path="tiny",
                speculative_draft_model_path=str(tmp_path / "drafter"),
            )
            stack.enter_context(fake.modules(settings, mask))
            module = importlib.import_module("dlite.serve.sglang_plugin.worker")
            worker = module.DLiteWorker(None, 0, 0, fake.TargetWorker(target))
            worker.alloc_memory_pool(memory_pool_config=None)
            return Scheduler(worker, overlap)

        yield make


def answers(target: HFTarget, *prompts: list[int], length: int = 30) -> list[list[int]]:
    requests = [Request(tuple(ids), length, stop_ids=frozenset()) for ids in prompts]
    return [list(one.token_ids) for one in plain(target, requests)]


def agree(found: list[int], whole: list[int]) -> bool:
    """As far as it went; it went somewhere."""
    return len(found) > 8 and found == whole[: len(found)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("anchor_group", [1, 2])
def test_greedy_is_plain_decoding(start: Start, target: HFTarget, overlap: bool, anchor_group: int) -> None:
    """Requests join and leave; a slot is used again; both forms of DLite, the second of which reads the pivot's token."""
    scheduler = start(overlap=overlap, anchor_group=anchor_group)
    batch = scheduler.prompts({1: PROMPTS[0], 4: PROMPTS[1]})
    for _ in range(3):
        scheduler.round(batch)
    scheduler.join(batch, scheduler.prompts({2: PROMPTS[2]}))
    for _ in range(4):
        scheduler.round(batch)
    first = scheduler.answers[1]
    scheduler.keep(batch, [2, 1])  # the order changes too
    scheduler.join(batch, scheduler.prompts({1: PROMPTS[2]}))
    for _ in range(8):
        scheduler.round(batch)
    whole = answers(target, *PROMPTS)
    assert first == whole[0][: len(first)]
    assert len(first) > 7
    assert agree(scheduler.answers[4], whole[1])
    assert agree(scheduler.answers[2], whole[2])
    assert agree(scheduler.answers[1], whole[2])
    assert max(scheduler.rounds) > 1


@pytest.mark.parametrize("last_tap", ["raw", "normed"])
def test_the_same_drafts_as_our_own_engine(start: Start, target: HFTarget, last_tap: str) -> None:
    """The taps, the last layer's by a hook on the final norm, are those that the drafter knows: every round accepts alike."""
    scheduler = start(last_tap=last_tap)
    drafter = tiny_drafter(target, K=K, last_tap=last_tap).freeze()
    assert drafter.taps[-1] == target.info.num_layers - 1
    for ids in PROMPTS:
        (expected,) = decode(target, drafter, [Request(tuple(ids), 25, stop_ids=frozenset())], max_batch=1)
        scheduler.rounds.clear()
        batch = scheduler.prompts({3: ids})
        while len(scheduler.answers[3]) < 25:
            scheduler.round(batch)
        assert scheduler.answers[3][:25] == list(expected.token_ids)
        assert scheduler.rounds[:-1] == [one.committed for one in expected.rounds][:-1]


def test_cold_restored_and_resumed_prompts_draft_alike(start: Start) -> None:
    """A prefix from the radix cache, and a request that was retracted: one row of the prompt is all a DLite needs."""
    scheduler = start()
    drafts = []
    for known in (0, 2, len(PROMPTS[1]) - 1):
        scheduler.prompts({0: PROMPTS[1]}, known)
        drafts.append(scheduler.worker.rounds.tokens[0].clone())
    batch = scheduler.prompts({0: PROMPTS[1]})
    scheduler.round(batch)
    here = scheduler.worker.rounds.tokens[0].clone()
    scheduler.prompts({5: scheduler.target.texts[0][:-1]})
    assert torch.equal(scheduler.worker.rounds.tokens[5], here)
    assert all(torch.equal(one, drafts[0]) for one in drafts)


def test_only_slots_of_the_batch_are_written(start: Start) -> None:
    scheduler = start()
    worker = scheduler.worker
    worker.rounds.tokens.fill_(-5)
    scheduler.prompts({1: PROMPTS[0], 4: PROMPTS[1]})
    written = (worker.rounds.tokens != -5).any(1).tolist()
    assert written == [False, True, False, False, True, False]
    assert worker.rounds.tokens.shape == (6, K)
    assert worker.draft_worker is None


def test_with_overlap_lengths_are_published_before_drafting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler prepares the next step from them while the drafter works."""
    scheduler = start(overlap=True)
    draft = scheduler.worker.rounds.draft

    def noted(*values: Any) -> None:
        scheduler.events.append("draft")
        draft(*values)

    monkeypatch.setattr(scheduler.worker.rounds, "draft", noted)
    batch = scheduler.prompts({1: PROMPTS[0]})
    result = scheduler.round(batch)
    lengths = [4, 4 + int(result.accept_lens[0])]
    assert scheduler.events == [f"lengths [{lengths[0]}]", "draft", f"lengths [{lengths[1]}]", "draft"]


def test_fewer_drafts_than_trained(start: Start, target: HFTarget) -> None:
    scheduler = start(rows=3)
    batch = scheduler.prompts({0: PROMPTS[0]})
    for _ in range(8):
        scheduler.round(batch)
    assert agree(scheduler.answers[0], answers(target, PROMPTS[0])[0])
    assert max(scheduler.rounds) <= 3


def test_a_greedy_request_beside_sampled_ones(start: Start, target: HFTarget) -> None:
    """Its text does not change; that of the others stays in what top-k allows at each place."""
    scheduler = start(draft_vocab=tuple(range(0, target.info.vocab_size, 2)))
    sampling = [asked(1.5, 2), asked(1.0, 1), asked(0.7, ALL, 0.9, 0.05)]
    batch = scheduler.prompts(dict(zip((0, 2, 5), PROMPTS, strict=True)), sampling=sampling, info=given(sampling))
    for _ in range(8):
        scheduler.round(batch)
    assert agree(scheduler.answers[2], answers(target, PROMPTS[1])[0])
    text = scheduler.target.texts[0]
    best = scheduler.target.model(text)[0].topk(2).indices
    after = range(len(PROMPTS[0]), len(text) - 1)  # the first token comes from SGLang's own sampler
    assert all(text[at + 1] in best[at].tolist() for at in after)
    assert any(text[at + 1] != int(best[at, 0]) for at in after)
    q = scheduler.worker.rounds.probs
    assert torch.allclose(q[[0, 5]].sum(-1), torch.ones(2, K))
    assert not q[2].any()


def given(sampling: list[Any]) -> SimpleNamespace:
    return SimpleNamespace(**vars(info(sampling)), logit_bias=None)


def test_a_logit_bias_and_a_grammar_bind_every_row(start: Start, target: HFTarget) -> None:
    """No token under a heavy bias, none that the grammar forbids, and otherwise the best one."""
    bias = torch.zeros(1, target.info.vocab_size)
    bias[0, ::3] = -1e4
    seen = []

    def mask(*, reqs: Any, tree: Any, sampling_info: Any, device: Any, barrier: Any) -> Any:
        seen.append(tree)
        return SimpleNamespace(apply=lambda logits: logits[:, 1::3].fill_(-torch.inf))

    scheduler = start(mask=mask)
    batch = scheduler.prompts({0: PROMPTS[0]}, info=SimpleNamespace(logit_bias=bias), has_grammar=True)
    for _ in range(6):
        scheduler.round(batch)
    text = scheduler.target.texts[0]
    logits = scheduler.target.model(text)[0].clone()
    logits[:, ::3], logits[:, 1::3] = -torch.inf, -torch.inf
    after = range(len(PROMPTS[0]), len(text) - 1)
    assert [text[at + 1] for at in after] == [int(logits[at].argmax()) for at in after]
    assert all(len(row) == K + 1 for tree in seen for row in tree)
    assert len(seen) == 6


def test_log_probabilities_are_those_of_the_committed_tokens(start: Start) -> None:
    scheduler = start()
    batch = scheduler.prompts({0: PROMPTS[0]}, return_logprob=True)
    result = scheduler.round(batch)
    text, count = scheduler.target.texts[0], int(result.accept_lens[0])
    law = scheduler.target.model(text)[0].log_softmax(-1)
    expected = [float(law[at, text[at + 1]]) for at in range(len(PROMPTS[0]), len(PROMPTS[0]) + count)]
    assert torch.allclose(result.logits_output.next_token_logprobs[0, :count], torch.tensor(expected), atol=1e-4)


def test_what_cannot_be_opened(start: Start, target: HFTarget, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="5 drafts a round are asked"):
        start(rows=6)

    model = fake.Model(target)
    model.model.norm = None
    worker = fake.TargetWorker(target)
    worker.model_runner.model = model
    module = importlib.import_module("dlite.serve.sglang_plugin.worker")
    with pytest.raises(TargetError, match=r"Model has no model\.norm in SGLang"):
        module.DLiteWorker(None, 0, 0, worker)
    small = HFTarget(tiny_model("llama", num_hidden_layers=3), None, "llama")
    with pytest.raises(CheckpointError, match="layers 4"):
        module.DLiteWorker(None, 0, 0, fake.TargetWorker(small))


def test_hidden_states_that_do_not_come_are_no_silence(start: Start) -> None:
    scheduler = start()
    with pytest.raises(RuntimeError, match="SGLang returned no hidden states, expected 1 rows"):
        scheduler.worker.taps.read(None, 1)
    with pytest.raises(RuntimeError, match="of 3 rows, expected 1"):
        scheduler.worker.taps.read(torch.zeros(3, 4), 1)
