"""HFTarget against the transformers model it wraps, in every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dlite.errors import TargetError
from dlite.target.hf import HFTarget, load_hf, tokenizer_hash
from dlite.target.toy import ToyTokenizer
from tests.support import GEMMA_WINDOW, TINY_VOCAB, tiny_model

CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-3}  # the logits are of the order of 100


def ids(rows: int, length: int, *, seed: int = 0) -> Tensor:
    """Random tokens, longer than Gemma's window where length allows."""
    return torch.randint(1, TINY_VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def whole(target: HFTarget, tokens: Tensor, taps: tuple[int, ...] = (), rows: Any = "all") -> Any:
    """One pass over fresh rows."""
    return target.forward(tokens, target.new_cache(len(tokens), tokens.shape[1]), 0, taps, rows)


@pytest.mark.parametrize("freeze", [True, False])
def test_logits_are_the_models_own(family: str, freeze: bool) -> None:
    tokens = ids(2, 3 * GEMMA_WINDOW)
    own = tiny_model(family)(tokens).logits
    assert own.std() > 5, "sharp enough to mean something"
    found = whole(HFTarget(tiny_model(family), None, family, freeze=freeze), tokens).logits
    torch.testing.assert_close(found, own, **CLOSE)


def test_freezing_keeps_the_numbers_and_is_not_a_no_op(family: str) -> None:
    frozen, plain = (HFTarget(tiny_model(family), None, family, freeze=freeze) for freeze in (True, False))
    assert type(frozen.model.lm_head).__name__ == "PackedLinear"
    assert {type(m).__name__ for m in frozen.model.modules()} >= {"PackedLinear", "Projection", "FastRMSNorm"}
    for tokens in (ids(2, 9), ids(1, 1)):
        a, b = (whole(target, tokens, (0, 3)) for target in (frozen, plain))
        torch.testing.assert_close(a.logits, b.logits, **CLOSE)
        torch.testing.assert_close(a.taps, b.taps, rtol=1e-4, atol=1e-4)


def test_taps_are_raw_outputs_of_the_decoder_layers(family: str) -> None:
    """Entry l + 1 of ``hidden_states`` is tap l, but its last entry is after the final norm: the tap must not be."""
    tokens, model = ids(2, 9), tiny_model(family)
    raw: list[Tensor] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _m, _i, out: raw.append(out[0] if isinstance(out, tuple) else out))
    states = model(tokens, output_hidden_states=True).hidden_states
    target = HFTarget(tiny_model(family), None, family)
    taps = whole(target, tokens, (0, 2, 3)).taps
    torch.testing.assert_close(taps, torch.stack([raw[0], raw[2], raw[3]], 2), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(taps[:, :, 1], states[3], rtol=1e-4, atol=1e-4)
    assert (taps[:, :, 2] - states[4]).abs().max() > 0.1
    torch.testing.assert_close(target.final_norm(taps[:, :, 2]), states[4], rtol=1e-4, atol=1e-4)


def test_the_last_tap_gives_the_logits(hf_target: HFTarget) -> None:
    output = whole(hf_target, ids(2, 9), (3,))
    some = torch.tensor([5, 0, 36])
    torch.testing.assert_close(hf_target.last_tap_logits(output.taps[:, :, 0]), output.logits, **CLOSE)
    torch.testing.assert_close(hf_target.last_tap_logits(output.taps[:, :, 0], some), output.logits[..., some], **CLOSE)


def test_the_last_tap_gives_soft_capped_logits() -> None:
    """Gemma 2 and some Gemma 3 configs squash the logits after lm_head."""
    target = HFTarget(tiny_model("gemma3", final_logit_softcapping=20.0), None, "capped")
    output = whole(target, ids(2, 9), (3,))
    assert 10 < output.logits.abs().max() <= 20
    torch.testing.assert_close(target.last_tap_logits(output.taps[:, :, 0]), output.logits, **CLOSE)


def test_the_last_tap_gives_scaled_and_biased_logits() -> None:
    """Granite divides its logits; some heads have a bias."""
    import transformers as tf

    config = tf.GraniteConfig(
        vocab_size=37, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=40, logits_scaling=8.0, eos_token_id=0, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    model = tf.GraniteForCausalLM(config).eval().requires_grad_(False)
    biased = tiny_model("llama")
    biased.lm_head.bias = torch.nn.Parameter(torch.randn(37), requires_grad=False)
    some = torch.tensor([5, 0, 36])
    for one in (model, biased):
        target = HFTarget(one, None, "scaled")
        output = whole(target, ids(2, 9), (3,))
        torch.testing.assert_close(target.last_tap_logits(output.taps[:, :, 0]), output.logits, **CLOSE)
        found = target.last_tap_logits(output.taps[:, :, 0], some)
        torch.testing.assert_close(found, output.logits[..., some], **CLOSE)


def test_output_weight_and_its_norm_scale_give_the_logits(hf_target: HFTarget) -> None:
    output = whole(hf_target, ids(2, 9), (3,))
    lm_head, scale = hf_target.output_weight()
    tap = output.taps[:, :, 0]
    normed = tap * torch.rsqrt(tap.square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(normed @ (lm_head * scale).T, output.logits, **CLOSE)


@pytest.mark.parametrize("rows", ["all", "last", "taps"])
def test_which_rows_come_back(hf_target: HFTarget, rows: Any) -> None:
    tokens = ids(2, 5)
    full, part = whole(hf_target, tokens, (1, 3)), whole(hf_target, tokens, (1, 3), rows)
    torch.testing.assert_close(part.logits, full.logits if rows == "all" else full.logits[:, -1:], **CLOSE)
    expected = full.taps[:, -1:] if rows == "last" else full.taps
    torch.testing.assert_close(part.taps, expected, rtol=1e-4, atol=1e-4)


def test_embed_is_what_the_first_layer_sees(family: str) -> None:
    """Gemma scales its embeddings by sqrt(D); forgetting that starts a drafter in the wrong place."""
    tokens, model = ids(2, 5), tiny_model(family)
    seen: list[Tensor] = []
    model.model.layers[0].register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    model(tokens)
    found = HFTarget(tiny_model(family), None, family).embed(tokens)
    torch.testing.assert_close(found, seen[0])
    scale = found.norm() / model.get_input_embeddings().weight[tokens].norm()
    assert float(scale) == pytest.approx(32**0.5 if family == "gemma3" else 1, rel=1e-4)


def test_ragged_passes_equal_whole_ones(hf_target: HFTarget) -> None:
    """Rows of unequal length advance together by several tokens; each sees what it would see alone."""
    length = 3 * GEMMA_WINDOW
    tokens = ids(3, length)
    expected = whole(hf_target, tokens, (0, 3))
    cache = hf_target.new_cache(3, 8)  # too small on purpose: it grows
    starts = [2, GEMMA_WINDOW + 3, 5]
    for row, start in enumerate(starts):
        hf_target.forward(tokens[row : row + 1, :start], cache, row, (), "last")
        cache.lengths[row] = start
    for new in (1, 4, 1, 3):
        at = list(cache.lengths)
        block = torch.stack([tokens[row, at[row] : at[row] + new] for row in range(3)])
        found = hf_target.forward(block, cache, 0, (0, 3), "all")
        for row in range(3):
            span = slice(at[row], at[row] + new)
            torch.testing.assert_close(found.logits[row], expected.logits[row, span], **CLOSE)
            torch.testing.assert_close(found.taps[row], expected.taps[row, span], rtol=1e-3, atol=1e-3)
            cache.lengths[row] += new


def test_rejected_positions_leave_no_trace(hf_target: HFTarget) -> None:
    tokens = ids(1, GEMMA_WINDOW + 4)
    expected = whole(hf_target, tokens).logits[:, -2:]
    cache = hf_target.new_cache(1, 64)
    hf_target.forward(tokens[:, :-2], cache, 0, (), "last")
    cache.lengths[0] = tokens.shape[1] - 2
    hf_target.forward(ids(1, 5, seed=9), cache, 0, (), "all")  # drafts, none of them accepted
    torch.testing.assert_close(hf_target.forward(tokens[:, -2:], cache, 0, (), "all").logits, expected, **CLOSE)


def test_moved_and_restored_rows_continue_alike(hf_target: HFTarget) -> None:
    tokens = ids(1, 12)
    expected = whole(hf_target, tokens).logits[:, -3:]
    cache = hf_target.new_cache(2, 12)
    hf_target.forward(tokens[:, :9], cache, 1, (), "last")
    cache.lengths[1] = 9
    saved = cache.export(1, 9)
    cache.move(1, 0)
    torch.testing.assert_close(hf_target.forward(tokens[:, 9:], cache, 0, (), "all").logits, expected, **CLOSE)
    other = hf_target.new_cache(3, 4)
    other.restore(2, saved, 9)
    assert other.lengths == [0, 0, 9]
    torch.testing.assert_close(hf_target.forward(tokens[:, 9:], other, 2, (), "all").logits, expected, **CLOSE)


@pytest.mark.parametrize("tap", [-1, 4])
def test_a_tap_out_of_range_is_named(hf_target: HFTarget, tap: int) -> None:
    with pytest.raises(TargetError, match=f"tap {tap} does not exist in .*, which has layers 0 to 3"):
        whole(hf_target, ids(1, 2), (0, tap))


def test_info(hf_target: HFTarget) -> None:
    info = hf_target.info
    assert (info.vocab_size, info.hidden_size, info.num_layers, info.context_length) == (TINY_VOCAB, 32, 4, 40)
    assert info.stop_ids == {0}
    assert info.tokenizer_hash == ""


def test_several_stop_ids_are_all_kept() -> None:
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [3, 5]
    assert HFTarget(model, ToyTokenizer(TINY_VOCAB), "llama").info.stop_ids == {0, 3, 5}


def test_a_tied_embedding_survives_freezing() -> None:
    model = tiny_model("llama", tie_word_embeddings=True)
    tokens = ids(1, 5)
    own, weight = model(tokens).logits, model.get_input_embeddings().weight.clone()
    target = HFTarget(model, None, "tied")
    torch.testing.assert_close(whole(target, tokens).logits, own, **CLOSE)
    assert torch.equal(target.embed(torch.arange(TINY_VOCAB)), weight)


def test_a_model_without_layers_is_refused() -> None:
    model = tiny_model("llama")
    model.model.blocks = model.model.layers
    del model.model.layers
    with pytest.raises(TargetError, match=r"keeps its layers under none of layers, h\. Expected a decoder-only"):
        HFTarget(model, None, "odd")


def test_a_folder_without_a_model_is_refused(tmp_path: Any) -> None:
    with pytest.raises(TargetError, match=r"no usable target at .*Expected a Hugging Face hub id"):
        load_hf(str(tmp_path))


def test_tokenizer_hash_tells_vocabularies_apart() -> None:
    one, same, other = (tokenizer_hash(ToyTokenizer(size)) for size in (10, 10, 11))
    assert one == same != other
    assert len(one) == 16
