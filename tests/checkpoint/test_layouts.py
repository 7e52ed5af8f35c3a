"""Folders in the layouts of others: loaded, they decode losslessly and compute what their description says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dlite.checkpoint import CONFIG, LAYOUTS, WEIGHTS, load_drafter, save_drafter
from dlite.checkpoint.files import SHARDS
from dlite.drafters import load_drafter as load_ready
from dlite.engine.request import Request
from dlite.errors import CheckpointError
from tests.checkpoint import folders as f
from tests.checkpoint import support as s
from tests.drafters.support import Listener
from tests.support import decode, outcome, plain

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


def block_twin(
    t: s.Tensors, taps: Tensor, tokens: Sequence[int], drafts: Sequence[int], *, first: int = 1, head: str | None = None
) -> Tensor:
    """Logits of a block: ``first`` is 0 where the anchor predicts."""
    K = len(drafts)
    words = f.hf().embed(torch.tensor([tokens[-1], *[f.MASK] * (K - 1 + first)]))
    hidden = s.block_hidden(t, 2, taps, list(words))[first:]
    bias = s.markov_bias(t, head, hidden, [tokens[-1], *drafts[:-1]]) if head else [torch.zeros(s.V)] * K
    return torch.stack([f.hf().output_weight()[0] @ h + b for h, b in zip(hidden, bias, strict=True)])


def eagle_twin(t: s.Tensors, taps: Tensor, tokens: Sequence[int], drafts: Sequence[int]) -> Tensor:
    hidden = s.eagle_hidden(t, taps, lambda x: f.hf().embed(torch.tensor(x)), [*tokens, *drafts], len(drafts))
    return torch.stack([f.hf().output_weight()[0] @ h for h in hidden])


CASES: dict[str, tuple[Any, Any, tuple[int, ...], tuple[int, ...] | None]] = {
    # writer, twin, taps, draft vocabulary
    "zlab": (f.zlab, block_twin, (1, 4), None),
    "deepspec-dflash": (f.deepspec, partial(block_twin, first=0), (0, 2, 4), None),
    "deepspec-vanilla": (f.vanilla, partial(block_twin, first=0, head="vanilla"), (0, 2, 4), None),
    "deepspec-gated": (f.gated, partial(block_twin, first=0, head="gated"), (0, 2, 4), None),
    "deepspec-rnn": (f.rnn, partial(block_twin, first=0, head="rnn"), (0, 2, 4), None),
    "deepspec-eagle3": (f.deepspec_eagle, eagle_twin, (0, 1, 2, 3, 4), None),
    "speculators-dflash": (f.speculators_dflash, block_twin, (0, 5), f.ROWS),
    "speculators-dspark": (f.speculators_dspark, partial(block_twin, head="vanilla"), (0, 2, 4), None),
    "speculators-eagle3": (f.speculators_eagle, eagle_twin, (1, 2, 2), f.ROWS),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_decodes_losslessly_and_drafts_what_its_description_says(case: str, tmp_path: Path) -> None:
    writer, twin, taps, vocab = CASES[case]
    tensors = load_file(writer(tmp_path) / WEIGHTS)
    listener = Listener(load_ready(str(tmp_path), f.hf()))
    assert (listener.taps, listener.max_drafts) == (taps, 4)
    request = Request(PROMPT, 12)
    assert outcome(decode(f.hf(), listener, [request])) == outcome(plain(f.hf(), [request]))
    for tokens, (logits, drafts) in list(listener.heard.items())[:2]:
        known = torch.tensor([tokens[:-1]])
        seen = f.hf().forward(known, f.hf().new_cache(1, len(tokens)), 0, taps, "taps").taps[0].clone()
        wanted = twin(tensors, seen, tokens, drafts)
        wanted = wanted if vocab is None else wanted[:, list(vocab)]
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("writer", [f.zlab2], ids=["zlab2"])
def test_dflash2_gives_its_tensors_to_ours(writer: Any, tmp_path: Path) -> None:
    """The parts of our DFlash2 have twins of their own; here the names and the two views of a kernel are at stake."""
    tensors = load_file(writer(tmp_path) / WEIGHTS)
    drafter, _ = load_drafter(tmp_path, f.hf().info)
    state, config = drafter.state_dict(), drafter.config
    assert (config.conv_group, config.candidates, config.rank, config.K) == (8, 6, s.RANK, 4)
    for name, theirs in {
        "body.layers.1.attention_conv.base": "layers.1.attention_conv.base_kernel",
        "body.layers.0.mlp_conv.steer.weight": "layers.0.mlp_conv.kernel_projection.weight",
        "pairwise.prev_token_embedding.weight": "candidate_selector.predecessor_codebook",
        "pairwise.next_token_embedding.weight": "candidate_selector.successor_codebook",
        "pairwise.hidden_proj.weight": "candidate_selector.hidden_projection.weight",
        "body.fuse_norm.weight": "hidden_norm.weight",
    }.items():
        assert torch.equal(state[name], tensors[theirs])
    request = Request(PROMPT, 12)
    found = decode(f.hf(), load_ready(str(tmp_path), f.hf()), [request])
    assert outcome(found) == outcome(plain(f.hf(), [request]))


@pytest.mark.parametrize("case", CASES)
def test_written_in_our_own_layout_it_stays_what_it_is(case: str, tmp_path: Path) -> None:
    drafter, _ = load_drafter(CASES[case][0](tmp_path / "theirs"), f.hf().info)
    save_drafter(drafter, tmp_path / "ours", f.hf().info)
    again, provenance = load_drafter(tmp_path / "ours", f.hf().info)
    assert again.config == drafter.config
    assert provenance.copies == {}
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in drafter.state_dict().items())


def test_a_folder_in_shards(tmp_path: Path) -> None:
    whole, _ = load_drafter(f.zlab(tmp_path), f.hf().info)
    tensors = load_file(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    names = sorted(tensors)
    place = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(place.values())):
        save_file({name: tensors[name] for name in names if place[name] == file}, tmp_path / file)
    (tmp_path / SHARDS).write_text(json.dumps({"weight_map": place}))
    parts, _ = load_drafter(tmp_path, f.hf().info)
    assert all(torch.equal(parts.state_dict()[name], weight) for name, weight in whole.state_dict().items())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing or damaged"):
        load_drafter(tmp_path, f.hf().info)


def test_older_folders_of_zlab_have_keys_at_the_top(tmp_path: Path) -> None:
    def change(config: dict[str, Any], _: s.Tensors) -> None:
        config["block_size"] = config["dflash_config"].pop("block_size")
        config["target_layer_ids"] = config["dflash_config"].pop("target_layer_ids")
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = None

    config = load_drafter(f.zlab(tmp_path, change), f.hf().info)[0].config
    assert (config.K, config.taps, config.backbone.rope_theta) == (4, (1, 4), s.THETA)


def test_which_rows_predict_is_said_twice_in_the_library(tmp_path: Path) -> None:
    def silent(config: dict[str, Any], _: s.Tensors) -> None:
        del config["sample_from_anchor"]

    def all_rows(config: dict[str, Any], _: s.Tensors) -> None:
        silent(config, _)
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 5

    def torn(config: dict[str, Any], _: s.Tensors) -> None:
        config["sample_from_anchor"] = True

    assert load_drafter(f.speculators_dspark(tmp_path / "a", silent), f.hf().info)[0].config.slots == "placeholders"
    config = load_drafter(f.speculators_dspark(tmp_path / "b", all_rows), f.hf().info)[0].config
    assert (config.slots, config.K) == ("anchor_predicts", 5)
    with pytest.raises(CheckpointError, match="block_size 5, sample_from_anchor True and speculative_tokens 4"):
        load_drafter(f.speculators_dspark(tmp_path / "c", torn), f.hf().info)


def test_the_library_needs_its_target(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not say how many layers its target has"):
        load_drafter(f.speculators_dflash(tmp_path))


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_matrices_that_are_not_the_targets_are_refused(name: str, tmp_path: Path) -> None:
    def rounded(_: dict[str, Any], tensors: s.Tensors) -> None:
        for key in ("embed_tokens.weight", "lm_head.weight"):
            tensors[key] = tensors[key].bfloat16()

    def trained(_: dict[str, Any], tensors: s.Tensors) -> None:
        tensors[name] = tensors[name] * 1.05

    load_ready(str(f.deepspec(tmp_path / "a", rounded)), f.hf())
    for folder in (f.deepspec(tmp_path / "b", trained), f.speculators_eagle(tmp_path / "c", trained)):
        with pytest.raises(CheckpointError, match=f"{name} of this drafter is not the target's own"):
            load_ready(str(folder), f.hf())


def test_the_table_tells_layouts_apart(tmp_path: Path) -> None:
    for number, (writer, *_) in enumerate(CASES.values()):
        data = json.loads((writer(tmp_path / str(number)) / CONFIG).read_text())
        assert sum(layout.fits(data) for layout in LAYOUTS) == 1
