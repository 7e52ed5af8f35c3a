"""Drafters on disk: the published layout to the letter, nothing dropped silently, nothing paired with a wrong target."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dlite.checkpoint import CONFIG, WEIGHTS, load_drafter, save_drafter
from dlite.config import load_recipe
from dlite.drafters.dlite import DLite
from dlite.drafters.network import BlockInput
from dlite.errors import CheckpointError
from dlite.nn.backbone import BackboneConfig
from dlite.target.base import TargetInfo
from dlite.target.toy import ToyTarget
from tests.drafters.support import forced_round, tiny
from tests.support import tiny_drafter

TOY = ToyTarget()
LAYER = {
    **{f"self_attn.{x}_proj.weight": shape for x, shape in {"q": (16, 16), "k": (8, 16), "v": (8, 16), "o": (16, 16)}.items()},
    "self_attn.q_norm.weight": (8,), "self_attn.k_norm.weight": (8,),
    "mlp.gate_proj.weight": (32, 16), "mlp.up_proj.weight": (32, 16), "mlp.down_proj.weight": (16, 32),
    "input_layernorm.weight": (16,), "post_attention_layernorm.weight": (16,),
}  # fmt: skip
SMALL: dict[str, tuple[int, ...]] = {
    **{f"layers.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()},
    "norm.weight": (16,), "layer_depth_embedding.weight": (6, 16), "context_norm.weight": (16,),
    "sequential_head.prev_token_embedding.weight": (12, 4), "sequential_head.output_proj.weight": (12, 4),
    "sequential_head.state_proj.weight": (8, 8), "sequential_head.state_proj.bias": (8,),
    "sequential_head.state_hidden_mlp.weight": (4, 20), "sequential_head.state_hidden_mlp.bias": (4,),
}  # fmt: skip
PUBLISHED: dict[str, Any] = {
    "architectures": ["DLiteDraftModel"], "model_type": "qwen3", "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 32, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "vocab_size": 12, "block_size": 5, "num_target_layers": 6,
    "dlite_config": {
        "architecture_version": "dlite_v1", "model_role": "pivot_q_student", "anchor_group_size": 1, "chs_num_layers": 3,
        "target_layer_ids": [0, 2, 5], "sequential_head": "rnn", "sequential_rank": 4, "mask_token_id": 11,
    },
}  # fmt: skip


def published(folder: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None] | None = None) -> Path:
    """A scaled-down checkpoint with the published names, after ``change`` has been at it."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SMALL.items()}
    config = json.loads(json.dumps(PUBLISHED))
    if change:
        change(config, tensors)
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def same_function(left: DLite, right: DLite) -> bool:
    """Equal logits on a few blocks, by weights and by everything the config says."""
    generator = torch.Generator().manual_seed(3)
    taps = torch.randn(3, len(left.taps), 16, generator=generator)
    tokens = torch.randint(12, (3, 6), generator=generator)
    block = BlockInput(taps, tokens[:, 0], tokens[:, 1], tokens[:, 2:])
    with torch.no_grad():
        return torch.equal(left.attach(TOY)(block).logits, right.attach(TOY)(block).logits)


@pytest.mark.parametrize(
    "options",
    [
        {"placeholder": "token"},
        {"placeholder": "learned"},
        {"anchor_group": 2},
        {"draft_vocab": (0, 1, 3, 4, 7)},
        {"last_tap": "normed", "anchor_group": 2, "draft_vocab": (2, 11)},
    ],
    ids=str,
)
def test_round_trip(tmp_path: Path, options: dict[str, Any]) -> None:
    drafter = tiny_drafter(TOY, **options)
    save_drafter(drafter, tmp_path, TOY.info)
    loaded, provenance = load_drafter(tmp_path, TOY.info)
    assert loaded.config == drafter.config
    assert same_function(loaded, drafter)
    assert (provenance.target, provenance.tokenizer_hash) == ("toy", "toy-12")
    assert {p.name for p in tmp_path.iterdir()} == {WEIGHTS, CONFIG}


def test_half_precision_round_trip(tmp_path: Path) -> None:
    drafter = tiny_drafter(TOY)
    save_drafter(drafter, tmp_path, TOY.info, dtype=torch.bfloat16)
    loaded, _ = load_drafter(tmp_path, TOY.info)
    for name, weight in drafter.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.bfloat16().float())


@pytest.mark.parametrize("version", ["dlite_v1", "dlite_v2"])
def test_a_published_checkpoint_comes_back_name_for_name(tmp_path: Path, version: str) -> None:
    (tmp_path / "theirs").mkdir()
    folder = published(tmp_path / "theirs", lambda c, _: c["dlite_config"].update(architecture_version=version))
    drafter, provenance = load_drafter(folder, TOY.info)
    config = drafter.config
    assert (config.K, config.taps, config.rank, config.mask_token_id) == (4, (0, 2, 5), 4, 11)
    assert (config.placeholder, config.last_tap, config.anchor_group) == ("token", "normed", int(version[-1]))
    assert (config.backbone.rope_theta, provenance.target) == (1e6, "")
    save_drafter(drafter, tmp_path / "ours", TOY.info, dtype=torch.bfloat16, published=True)
    theirs, ours = load_file(folder / WEIGHTS), load_file(tmp_path / "ours" / WEIGHTS)
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    found, wanted = (json.loads((f / CONFIG).read_text()) for f in (tmp_path / "ours", folder))
    assert found.items() >= wanted.items()
    assert found["dlite_config"] == wanted["dlite_config"]


def test_newer_configs_keep_theta_elsewhere(tmp_path: Path) -> None:
    def change(config: dict[str, Any], _: dict[str, Tensor]) -> None:
        del config["rope_theta"], config["head_dim"]
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e6}

    backbone = load_drafter(published(tmp_path, change))[0].config.backbone
    assert (backbone.rope_theta, backbone.head_dim) == (5e6, 8)


@pytest.mark.parametrize("options", [{"placeholder": "learned"}, {"draft_vocab": (1, 2)}, {"last_tap": "raw"}], ids=str)
def test_what_the_published_layout_cannot_say_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    drafter = tiny_drafter(TOY, **{"placeholder": "token", "last_tap": "normed"} | options)
    with pytest.raises(CheckpointError, match="the published layout has no learned placeholder"):
        save_drafter(drafter, tmp_path, TOY.info, published=True)
    with pytest.raises(CheckpointError, match="there is no published layout to write this dlite with"):
        save_drafter(DLite(replace(drafter.config, history_window=2)), tmp_path, TOY.info, published=True)


def test_the_full_size_layout() -> None:
    """Qwen3-4B: 36 layers of width 2560, 32 heads of 128 over 8, SwiGLU 9728, vocabulary 151936."""
    plan = load_recipe("qwen3-4b", ["drafter.placeholder=token"])
    sizes = BackboneConfig(2560, 36, 32, 8, 128, 9728, 1e-6, 1e6)
    info = TargetInfo("Qwen/Qwen3-4B", 151936, 2560, 36, 40960, frozenset({151645}), "", sizes)
    with torch.device("meta"):
        drafter = DLite(DLite.configure(plan.drafter, info, None))
    attention = {"q_proj": (4096, 2560), "k_proj": (1024, 2560), "v_proj": (1024, 2560), "o_proj": (2560, 4096)}
    layer = {f"self_attn.{k}": v for k, v in (attention | {"q_norm": (128,), "k_norm": (128,)}).items()}
    layer |= {"mlp.gate_proj": (9728, 2560), "mlp.up_proj": (9728, 2560), "mlp.down_proj": (2560, 9728)}
    layer |= {"input_layernorm": (2560,), "post_attention_layernorm": (2560,)}
    wanted = {f"layers.{i}.{name}.weight": shape for i in range(5) for name, shape in layer.items()} | {
        "norm.weight": (2560,),
        "layer_depth_embedding.weight": (36, 2560),
        "context_norm.weight": (2560,),
        "sequential_head.prev_token_embedding.weight": (151936, 320),
        "sequential_head.output_proj.weight": (151936, 320),
        "sequential_head.state_proj.weight": (640, 640),
        "sequential_head.state_proj.bias": (640,),
        "sequential_head.state_hidden_mlp.weight": (320, 2880),
        "sequential_head.state_hidden_mlp.bias": (320,),
    }
    assert {name: tuple(t.shape) for name, t in drafter.state_dict().items()} == wanted
    assert drafter.taps == (0, 1, 5, 8, 12, 16, 19, 23, 27, 30, 34, 35)


def drop(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del tensors["layers.1.mlp.up_proj.weight"]


def add(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["layers.2.mlp.up_proj.weight"] = torch.zeros(32, 16)


def bend(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    tensors["norm.weight"] = torch.zeros(15)


def other_architecture(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["architectures"] = ["Qwen3ForCausalLM"]


def plain_model(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del config["dlite_config"]


def unknown_key(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["dlite_config"]["window"] = 7


def missing_key(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    del config["dlite_config"]["sequential_rank"]


def other_version(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["dlite_config"]["architecture_version"] = "dlite_v3"


def other_group(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["dlite_config"]["anchor_group_size"] = 4


def other_head(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["dlite_config"]["sequential_head"] = "markov"


def a_word_for_a_size(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["hidden_size"] = "wide"


def a_word_for_the_taps(config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    config["dlite_config"]["target_layer_ids"] = 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (a_word_for_a_size, "has a value of the wrong kind"),
        (a_word_for_the_taps, "has a value of the wrong kind"),
        (drop, "misses tensors: layers.1.mlp.up_proj.weight. Expected exactly"),
        (add, "has unknown tensors: layers.2.mlp.up_proj.weight. Expected exactly"),
        (bend, r"norm.weight has shape \(15,\). Its config asks for \(16,\)"),
        (
            other_architecture,
            r"holds \['Qwen3ForCausalLM'\]. Expected one of: a drafter that dlite train wrote; a published",
        ),
        (plain_model, "lacks 'dlite_config'. Expected a DLite config"),
        (unknown_key, r"has unknown dlite_config keys \['window'\]"),
        (missing_key, "lacks 'sequential_rank'"),
        (other_version, "describes dlite_v3 with head rnn .*Expected dlite_v1 or dlite_v2"),
        (other_group, "anchor group 4. Expected dlite_v1 or dlite_v2, head rnn, group 1"),
        (other_head, "with head markov .*Expected dlite_v1 or dlite_v2, head rnn"),
    ],
)
def test_a_folder_that_does_not_fit_itself(tmp_path: Path, change: Callable[..., None], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        load_drafter(published(tmp_path, change))


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no drafter folder"):
        load_drafter(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_drafter(tmp_path)
    weights = published(tmp_path) / WEIGHTS
    for data in (weights.read_bytes()[:-9], b"", b"junk" * 9):
        weights.write_bytes(data)
        with pytest.raises(
            CheckpointError, match=r"model\.safetensors is missing or damaged .*Fetch or train it again"
        ):
            load_drafter(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match="is missing or damaged"):
        load_drafter(tmp_path)
    (tmp_path / CONFIG).write_text('{"architectures": ')
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        load_drafter(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_layers": 8}, "made for toy with layers 6; other has 8. Pass the target it was trained for"),
        ({"hidden_size": 32}, "with hidden size 16; other has 32"),
        ({"vocab_size": 13}, "with vocabulary 12; other has 13"),
        ({"tokenizer_hash": "abc"}, "with tokenizer hash toy-12; other has abc"),
    ],
)
def test_a_drafter_of_another_target_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    save_drafter(tiny_drafter(TOY), tmp_path, TOY.info)
    with pytest.raises(CheckpointError, match=words):
        load_drafter(tmp_path, replace(TOY.info, name="other", **change))


def test_taps_beyond_the_target_are_refused(tmp_path: Path) -> None:
    def change(config: dict[str, Any], _: dict[str, Tensor]) -> None:
        config["dlite_config"]["target_layer_ids"] = [0, 2, 6]

    with pytest.raises(CheckpointError, match=r"taps \(0, 2, 6\) do not fit a 6-layer target. Expected every tap < 6"):
        load_drafter(published(tmp_path, change), TOY.info)


def test_a_published_checkpoint_names_no_target_and_fits_by_its_sizes(tmp_path: Path) -> None:
    load_drafter(published(tmp_path), replace(TOY.info, name="Qwen/Qwen3-4B", tokenizer_hash="any"))
    with pytest.raises(CheckpointError, match="made for a target with vocabulary 12; toy has 99"):
        load_drafter(tmp_path, replace(TOY.info, vocab_size=99))


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_the_slot_convention_travels_with_the_weights(tmp_path: Path, kind: str) -> None:
    """The same tensors fit either convention, so only the config can say which: it always does, and nothing else may."""
    networks = {slots: tiny(kind, TOY, options={"slots": slots}) for slots in ("placeholders", "anchor_predicts")}
    shapes = [{name: t.shape for name, t in network.state_dict().items()} for network in networks.values()]
    assert shapes[0] == shapes[1]
    for slots, network in networks.items():
        save_drafter(network, tmp_path / slots, TOY.info)
        loaded, _ = load_drafter(tmp_path / slots, TOY.info)
        assert loaded.config.slots == slots
        assert loaded.body.layout == network.body.layout
        rounds = [forced_round(n.attach(TOY).eval(), TOY, (3, 1, 4, 1, 5), (2, 6, 4))[1] for n in (network, loaded)]
        torch.testing.assert_close(*rounds)
    file = tmp_path / "placeholders" / CONFIG
    config = json.loads(file.read_text())
    for wrong, words in (({}, "slots: "), ({"slots": "both"}, "slots: .*'placeholders' or 'anchor_predicts'")):
        rest = {name: value for name, value in config["config"].items() if name != "slots"}
        file.write_text(json.dumps({**config, "config": rest | wrong}))
        with pytest.raises(CheckpointError, match=rf"config\.json cannot be used \({words}"):
            load_drafter(file.parent, TOY.info)
