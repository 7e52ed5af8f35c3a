"""Draft choice and the q that is kept: the very distribution a draft was drawn from."""

from __future__ import annotations

import pytest
import torch

from dlite.engine.choose import BatchChooser, first_token, needs_q, verify
from dlite.engine.request import Active, Request
from dlite.sampling import SamplingParams, adjust, draw, position_coins, round_coins, shape
from dlite.types import Proposal
from dlite.verify import naive

SAMPLED = SamplingParams(temperature=0.7, top_k=4, repetition_penalty=1.5, seed=3)


def row(sampling: SamplingParams, tokens: tuple[int, ...] = (1, 2)) -> Active:
    """A request in flight."""
    return Active(0, Request(tokens, sampling=sampling), list(tokens))


def logits(*shape_: int, seed: int = 0) -> torch.Tensor:
    """Random logits."""
    return 2 * torch.randn(*shape_, generator=torch.Generator().manual_seed(seed))


def test_each_row_chooses_by_its_own_settings() -> None:
    batch = [row(SamplingParams()), row(SAMPLED), row(SamplingParams(logit_bias={5: 90.0})), row(SamplingParams())]
    chooser, given = BatchChooser(batch, 7), logits(2, 4, 7)
    first, second = chooser.choose(0, given[0]), chooser.choose(1, given[1])
    best = given.argmax(-1)
    assert first[[0, 2, 3]].tolist() == [best[0, 0], 5, best[0, 3]]
    q = [
        shape(adjust(given[0, 1:2], SAMPLED, [[1, 2]]), SAMPLED)[0],
        shape(adjust(given[1, 1:2], SAMPLED, [[1, 2, int(first[1])]]), SAMPLED)[0],
    ]
    coins = round_coins(SAMPLED.seed, "draft", 2, 2)
    assert [first[1], second[1]] == [draw(q[0], coins[0]), draw(q[1], coins[1])]
    torch.testing.assert_close(torch.stack(chooser.probs[1]), torch.stack(q), rtol=0, atol=0)
    assert list(chooser.probs) == [1]


def test_a_reduced_vocabulary_says_target_ids_and_keeps_q_over_all() -> None:
    ids = torch.tensor([6, 2, 4])
    chooser, given = BatchChooser([row(SamplingParams()), row(SAMPLED)], 7), logits(2, 3)
    tokens = chooser.choose(0, given, ids)
    assert tokens[0] == ids[given[0].argmax()]
    q = chooser.probs[1][0]
    assert q.shape == (7,)
    assert q[ids].sum() == pytest.approx(1)
    assert q[tokens[1]] > 0


def test_only_rules_that_compare_with_q_keep_it() -> None:
    rules = {rule: needs_q(row(SamplingParams(temperature=1.0, rule=rule))) for rule in ("rejection", "block", "match")}
    assert rules == {"rejection": True, "block": True, "match": False}
    assert not needs_q(row(SamplingParams()))


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("certain", [False, True])
def test_a_sampled_row_is_verified_by_its_rule(rule: str, certain: bool) -> None:
    """p is shaped with the drafts before it in the history; a drafter that chose for certain has a one-hot q."""
    for seed in range(30):
        sampling = SamplingParams(temperature=1.5, repetition_penalty=1.3, seed=seed, rule=rule)  # type: ignore[arg-type]
        batch = [row(SamplingParams()), row(sampling)]
        chooser, given = BatchChooser(batch, 5), logits(2, 2, 5, seed=seed)
        tokens = torch.stack([chooser.choose(slot, given[slot]) for slot in range(2)], 1)
        if certain:
            chooser = BatchChooser(batch, 5)
        own = logits(2, 3, 5, seed=seed + 100)
        verdict = verify(own, Proposal(tokens, torch.tensor([2, 2])), chooser)
        drafts = tokens[1].tolist()
        p = [shape(adjust(own[1, i : i + 1], sampling, [[1, 2, *drafts[:i]]]), sampling)[0].tolist() for i in range(3)]
        q = [[float(v == t) for v in range(5)] for t in drafts] if certain else torch.stack(chooser.probs[1]).tolist()
        u = [*round_coins(seed, "accept", 2, 2).tolist(), float(position_coins(seed, 2, 1))]
        expected = getattr(naive, rule)(p, drafts, q, u)
        assert (int(verdict.num_accepted[1]), int(verdict.next_token[1])) == expected
        greedy = naive.match(own[0].argmax(-1).tolist(), tokens[0].tolist())
        assert (int(verdict.num_accepted[0]), int(verdict.next_token[0])) == greedy


def test_the_first_token_uses_its_positions_own_coin() -> None:
    given = logits(7)
    assert first_token(given, row(SamplingParams())) == int(given.argmax())
    p = shape(adjust(given[None], SAMPLED, [[1, 2]]), SAMPLED)
    assert first_token(given, row(SAMPLED)) == int(draw(p, position_coins(3, 2, 1)))
