"""What every drafter must keep, whatever it reads and remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dlite.checkpoint import load_drafter, save_drafter
from dlite.drafters import TABLE
from dlite.engine.decode import Engine
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Request
from dlite.features.capture import Capturer, CaptureSettings
from dlite.nn.pairwise import spread
from dlite.sampling import SamplingParams
from dlite.target.hf import HFTarget
from dlite.target.toy import ToyTarget
from dlite.train.stages import block_input
from dlite.types import Conversation
from tests.drafters.support import LEARNING, ROUND_LOCAL, TRAINED, WEIGHTLESS, Listener, label, ready, tiny
from tests.support import Recorder, decode, outcome, plain, shapes, tiny_model

TOY = ToyTarget(sharpness=4.0, stop=False)
ALL = [*TRAINED, *WEIGHTLESS]
PROMPTS = [(3, 1, 4, 1, 5, 9, 2, 6), (2, 7), (1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 1, 8, 2, 8), (5,)]
REQUESTS = [Request(ids, 30, K) for ids, K in zip(PROMPTS, [None, 1, 3, 2], strict=True)]
FIRST = Request(PROMPTS[0], 20)


@pytest.fixture(scope="module")
def hf() -> HFTarget:
    """A tiny transformer whose states depend on the whole history."""
    return HFTarget(tiny_model("llama", context=200, num_hidden_layers=6), None, "tiny")


@pytest.fixture(scope="module")
def plainly(hf: HFTarget) -> list[tuple[Any, list[Any]]]:
    """Each target with what plain decoding makes of the requests; no drafter has a part in it."""
    return [(target, outcome(plain(target, REQUESTS))) for target in (TOY, hf)]


@pytest.fixture(scope="module")
def second_turn(hf: HFTarget) -> Request:
    """The turn behind ``FIRST`` and its answer."""
    answer = plain(hf, [FIRST])[0].token_ids
    return Request((*FIRST.ids, *answer, 7, 11, 13), 20)


def test_the_contract_covers_the_table() -> None:
    covered = {name for name, _ in TRAINED} | set(map(label, WEIGHTLESS))
    assert covered >= TABLE.keys() - {"none"}


@pytest.mark.parametrize("case", ALL, ids=label)
def test_greedy_output_is_plain_decoding(case: Any, plainly: list[tuple[Any, list[Any]]]) -> None:
    for target, expected in plainly:
        found = decode(target, ready(case, target), REQUESTS, max_batch=3)
        assert outcome(found) == expected
        assert all(r.proposed <= (q.K or 4) for q, g in zip(REQUESTS, found, strict=True) for r in g.rounds)


@pytest.mark.parametrize("case", ALL, ids=label)
def test_sampled_output_has_the_targets_frequencies(case: Any) -> None:
    """400 seeds against the exact law of two tokens: the q that is kept is the q that was sampled. The rules themselves
    are proved exact elsewhere."""
    target = ToyTarget(vocab_size=4, sharpness=1.0, stop=False)
    drafter = ready(case, target, K=2)
    requests = [Request((1, 2), 2, sampling=SamplingParams(temperature=1.0, seed=s)) for s in range(400)]
    counts = torch.zeros(4, 4)
    for result in decode(target, drafter, requests, max_batch=200):
        counts[result.token_ids] += 1
    law = torch.zeros(4, 4)
    for a in range(4):
        p = target.forward(torch.tensor([[1, 2, a]]), target.new_cache(1, 3), 0, (), "all").logits.softmax(-1)[0]
        law[a] = p[1, a] * p[2]
    chi_square = ((counts - 400 * law) ** 2 / (400 * law)).sum()
    assert chi_square < 45  # 15 degrees of freedom: one chance in 13,000


@pytest.mark.parametrize("case", ALL, ids=label)
def test_a_batch_drafts_what_single_runs_draft(case: Any, hf: HFTarget) -> None:
    requests = [Request(ids, 24) for ids in PROMPTS]
    together = decode(hf, ready(case, hf), requests, max_batch=3)
    alone = [decode(hf, ready(case, hf), [request], max_batch=1)[0] for request in requests]
    assert outcome(together) == outcome(alone)
    assert [shapes(r) for r in together] == [shapes(r) for r in alone]


@pytest.mark.parametrize("case", ALL, ids=label)
def test_cold_restored_and_resumed_requests_draft_alike(case: Any, hf: HFTarget, second_turn: Request) -> None:
    turn = second_turn
    cold = Recorder(ready(case, hf))
    expected = decode(hf, cold, [turn])
    warm = Recorder(ready(case, hf))
    prefix = PrefixCache(4)
    engine = Engine(hf, warm, prefix=prefix)
    for request in (FIRST, turn):
        number = engine.submit(request)
        engine.run()
    found = engine.result(number)
    assert prefix.restored_tokens > 0
    assert outcome([found]) == outcome(expected)
    assert {k: v for k, v in warm.drafts.items() if k in cold.drafts} == cold.drafts
    if cold.name in ROUND_LOCAL:
        cold = Recorder(ready(case, hf, round_local=False))
        decode(hf, cold, [turn])
    again = Recorder(ready(case, hf, round_local=False))
    engine = Engine(hf, again, max_batch=2)
    number, other = engine.submit(turn), engine.submit(FIRST)
    for _ in range(3):
        engine.step()
    engine.preempt(number)
    engine.run()
    assert outcome([engine.result(number)]) == outcome(expected)
    if case not in LEARNING:
        assert {k: v for k, v in again.drafts.items() if k in cold.drafts} == cold.drafts
    engine.result(other)


@pytest.mark.parametrize("case", TRAINED, ids=label)
def test_training_and_decoding_give_the_same_logits(case: Any, hf: HFTarget) -> None:
    """Slots, positions, history and shifts: blocks captured for training against the rounds of a real decode."""
    listener = Listener(ready(case, hf, round_local=False))
    result = decode(hf, listener, [Request(PROMPTS[2], 40)])[0]
    ids = (*PROMPTS[2], *result.token_ids)
    wrote = (False,) * len(PROMPTS[2]) + (True,) * len(result.token_ids)
    network = tiny(case[0], hf, **case[1])
    settings = CaptureSettings(network.taps, 4, history=network.history, whole_blocks=False)
    blocks = Capturer(hf, settings).capture(Conversation("c", "s", ids, wrote, finished=True, looping=False))
    assert blocks is not None
    with torch.no_grad():
        output = network(block_input(blocks, 4, network.history))
    trained = output.logits if output.candidates is None else spread(*output.candidates, network.vocab.size)
    anchors = range(len(PROMPTS[2]), len(ids) - 1)
    compared = 0
    for row, a in enumerate(anchors):
        if ids[: a + 1] not in listener.heard:
            continue
        logits, drafts = listener.heard[ids[: a + 1]]
        for slot in range(len(drafts)):
            torch.testing.assert_close(logits[slot], trained[row, slot], rtol=1e-3, atol=1e-3)
            compared += 1
            if a + 1 + slot >= len(ids) or drafts[slot] != ids[a + 1 + slot]:
                break  # from here on the two were fed different tokens
    assert compared >= 10


@pytest.mark.parametrize("case", TRAINED, ids=label)
def test_every_gradient_arrives(case: Any, hf: HFTarget) -> None:
    network = tiny(case[0], hf, **case[1]).requires_grad_(True)
    settings = CaptureSettings(network.taps, 4, history=network.history, whole_blocks=False)
    ids = tuple(range(1, 30))
    talk = Conversation("c", "s", ids, (False,) * 9 + (True,) * 20, finished=True, looping=False)
    blocks = Capturer(hf, settings).capture(talk)
    assert blocks is not None
    output = network(block_input(blocks, 4, network.history))
    parts = [output.logits, output.confidence, output.candidates[1] if output.candidates else None]
    sum(part.float().square().sum() for part in parts if part is not None).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("case", TRAINED, ids=label)
def test_saved_and_loaded_it_drafts_the_same(case: Any, hf: HFTarget, tmp_path: Path) -> None:
    save_drafter(tiny(case[0], hf, **case[1]), tmp_path / "d", hf.info)
    loaded, provenance = load_drafter(tmp_path / "d", hf.info)
    assert provenance.target == "tiny"
    before, after = Recorder(ready(case, hf)), Recorder(loaded.attach(hf).freeze())
    request = Request(PROMPTS[2], 20)
    decode(hf, before, [request])
    decode(hf, after, [request])
    assert before.drafts == after.drafts


@pytest.mark.parametrize("case", TRAINED, ids=label)
@pytest.mark.parametrize("length", [12, 40])
def test_state_bytes_are_what_is_kept(case: Any, length: int, hf: HFTarget) -> None:
    drafter = ready(case, hf)
    memory = drafter.new_memory(1)
    own = 4 * len(drafter.taps) * hf.info.hidden_size
    own += 4 * drafter.max_drafts * hf.info.hidden_size if drafter.name in ROUND_LOCAL else 0
    if memory is None:
        assert drafter.state_bytes(length) == drafter.state_bytes(8 * length) <= own
        return
    ids = torch.arange(length - 1)[None] % 30
    cache = hf.new_cache(1, length)
    output = hf.forward(ids, cache, 0, drafter.taps, "taps")
    memory.observe(0, ids, output.taps, [length - 1])
    kept = memory.bytes(0)
    assert kept <= drafter.state_bytes(length) <= kept + own
