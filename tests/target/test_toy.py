"""The toy target is exact: a pass over many rows gives the very numbers of single ones."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dlite.target.toy import ToyTarget, ToyTokenizer

TARGET = ToyTarget()


@given(st.lists(st.integers(0, 11), min_size=1, max_size=12), st.integers(1, 12))
def test_chunks_and_batches_give_bitwise_equal_rows(ids: list[int], cut: int) -> None:
    one = torch.tensor([ids])
    whole = TARGET.forward(one, TARGET.new_cache(1, 12), 0, (0, 5), "all")
    batch = TARGET.forward(one.expand(4, -1), TARGET.new_cache(4, 12), 0, (0, 5), "all")
    assert torch.equal(batch.logits, whole.logits.expand(4, -1, -1))
    cache = TARGET.new_cache(1, 12)
    for start in range(0, len(ids), cut):
        part = TARGET.forward(one[:, start : start + cut], cache, 0, (0, 5), "all")
        assert torch.equal(part.logits, whole.logits[:, start : start + cut])
        assert torch.equal(part.taps, whole.taps[:, start : start + cut])
        cache.lengths[0] += part.logits.shape[1]


def test_the_last_tap_gives_the_logits() -> None:
    ids = torch.tensor([[1, 2, 3]])
    output = TARGET.forward(ids, TARGET.new_cache(1, 3), 0, (5,), "all")
    assert torch.equal(TARGET.last_tap_logits(output.taps[:, :, 0]), output.logits)
    some = torch.tensor([4, 0])
    torch.testing.assert_close(TARGET.last_tap_logits(output.taps[:, :, 0], some), output.logits[..., some])


def test_letters() -> None:
    tokenizer = ToyTokenizer(12)
    assert tokenizer.decode([1, 2, 0, 3]) == "abc"
    assert tokenizer.encode("abck") == [1, 2, 3, 11]
