"""What cannot be served is refused when it is submitted, in words, and never reaches the batch."""

from __future__ import annotations

import pytest

from dlite.drafters.none import NoDrafter
from dlite.engine.decode import Engine
from dlite.engine.request import Active, Request
from dlite.errors import RequestError
from dlite.sampling import SamplingParams
from dlite.target.toy import ToyTarget
from tests.support import Oracle


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(()), "the prompt is empty"),
        (Request((1,) * 20), "the prompt has 20 tokens.*at most 19 fit"),
        (Request((1, 12)), "token id 12 is not in toy's vocabulary of 12"),
        (Request((-1,)), "token id -1 is not in toy's vocabulary of 12"),
        (Request((1,), 0), "max_new_tokens is 0"),
        (Request((1,), K=5), "K is 5. This drafter proposes 1 to 4"),
        (Request((1,), K=0), "K is 0. This drafter proposes 1 to 4.*use the drafter 'none'"),
        (Request((1,), stop_strings=("a", "")), "a stop string is empty"),
        (Request((1,), sampling=SamplingParams(logit_bias={12: 1.0})), "logit_bias names token id 12"),
    ],
)
def test_what_cannot_be_served_is_refused(request_: Request, words: str) -> None:
    engine = Engine(ToyTarget(context_length=20), Oracle([], 12, 4, wrong=0, seed=0))
    with pytest.raises(RequestError, match=words):
        engine.submit(request_)
    assert not engine.busy


def test_a_prompt_one_short_of_the_context_gets_its_one_token() -> None:
    engine = Engine(ToyTarget(context_length=20, stop=False), NoDrafter())
    number = engine.submit(Request((1,) * 19))
    engine.run()
    result = engine.result(number)
    assert (len(result.token_ids), result.finish, result.prompt_tokens) == (1, "context", 19)


def test_room_is_the_nearer_of_two_limits() -> None:
    row = Active(0, Request((1, 2, 3), 10), [1, 2, 3, 4])
    assert row.produced == 1
    assert row.room(100) == 9
    assert row.room(8) == 4
