"""Past outputs: what they hold, what is dropped, and that they help later requests without changing what is said."""

from __future__ import annotations

import random

import pytest

from dlite.drafters import load_drafter
from dlite.drafters.suffix import Past, Suffix
from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.errors import DliteError
from dlite.target.toy import ToyTarget
from tests.support import Recorder, decode, outcome, plain


def test_the_better_scored_text_gives_the_drafts() -> None:
    memory = Suffix().new_memory(1)
    own = [1, 2, 8, 3, 2, 9, 4, 2]  # after 2 came 8 and 9
    assert memory.best(0, own, 4).tokens == [9]
    memory.past.add([4, 2, 7, 7])
    assert (memory.best(0, own, 4).tokens, memory.best(0, own, 4).score) == ([7, 7], 2.0)
    memory.past.add([4, 2, 6])  # now it is 7 or 6: no better than the request's own text
    assert memory.best(0, own, 4).tokens == [9]


def test_outputs_are_kept_without_their_prompts_and_nothing_of_a_preempted_request() -> None:
    memory = Suffix().new_memory(2)
    memory.clear(0, [1, 2, 3, 4, 5], 3)
    memory.clear(1)
    assert memory.past.newer.ids == [4, 5, -1]


def test_the_oldest_outputs_are_dropped_and_the_budget_holds() -> None:
    past = Past(40)
    r = random.Random(0)
    for i in range(60):
        past.add([100 + i] * r.randrange(30))
        assert len(past.newer.ids) <= 20
        assert len(past.older.ids) <= 20
    assert 159 in past.newer.ids + past.older.ids
    assert 110 not in past.newer.ids + past.older.ids


@pytest.mark.parametrize("budget", [0, 1, 2, 3])
def test_a_budget_too_small_for_anything_keeps_nothing_or_one_token(budget: int) -> None:
    past = Past(budget)
    past.add([1, 2, 3])
    assert past.newer.ids in ([], [3, -1])


def test_later_requests_draft_from_earlier_answers_and_say_the_same() -> None:
    target = ToyTarget(vocab_size=26, sharpness=60.0, stop=False)
    requests = [Request((3, 1), 30), Request((7, 3, 1), 30)]
    expected = plain(target, requests)
    drafter = Recorder(Suffix())
    engine = Engine(target, drafter)
    rounds = []
    for request, answer in zip(requests, expected, strict=True):
        number = engine.submit(request)
        engine.run()
        found = engine.result(number)
        assert outcome([found]) == outcome([answer])
        rounds.append(len(found.rounds))
    assert rounds[1] < rounds[0]
    alone = decode(target, Suffix(), requests[1:])[0]
    assert rounds[1] < len(alone.rounds)


def test_the_argument_is_the_budget() -> None:
    assert load_drafter("suffix:0", ToyTarget()).past_tokens == 0
    assert load_drafter("suffix", ToyTarget()).past_tokens == 65_536
    with pytest.raises(DliteError, match="suffix:many does not say how many tokens"):
        load_drafter("suffix:many", ToyTarget())


def test_state_bytes_are_about_what_is_kept() -> None:
    memory, r = Suffix().new_memory(1), random.Random(0)
    memory.texts[0].extend([int(r.paretovariate(0.7)) % 5000 for _ in range(8192)])
    assert 0.7 < memory.bytes(0) / Suffix().state_bytes(8192) < 1.3
