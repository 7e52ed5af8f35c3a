"""The vLLM plug-in without vLLM: a made-up package with the files, classes and parameters that the plug-in checks for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dlite.checkpoint import save_drafter
from dlite.errors import CheckpointError, DliteError, TargetError
from dlite.serve import vllm_plugin
from dlite.serve.guard import mismatches
from dlite.serve.vllm_plugin import hooks
from dlite.serve.vllm_plugin.config import DLiteModelConfig, derived
from dlite.serve.vllm_plugin.hooks import HOOKS
from dlite.serve.vllm_plugin.target import folder_of, lend, open_for
from dlite.target.toy import ToyTarget
from tests.support import tiny_drafter

TARGET = ToyTarget()
EXTRA = {
    "model_executor/models/config.py": "MODELS_CONFIG_MAP = {}\n",
    "model_executor/models/registry.py": (
        "SEEN = {}\n_ModelRegistry.register_model = lambda self, model_arch, model_cls: SEEN.update({model_arch: model_cls})\n"
        "ModelRegistry = _ModelRegistry()\n"
    ),
    "config/compilation.py": "class CUDAGraphMode: pass\n",
    "v1/worker/gpu/model_runner.py": "from vllm.v1.worker.gpu.spec_decode import init_speculator\n",
}
Fake = Callable[..., Path]


def sources() -> dict[str, str]:
    """The files of a package that has all that the plug-in looks for, and no more."""
    classes: dict[tuple[str, str], list[str]] = {}
    for where, parameters in HOOKS.items():
        file, _, path = where.partition(":")
        owner, _, function = path.rpartition(".")
        given = ", ".join(f"{name}=None" for name in parameters.split())
        body = (
            "self.made = vllm_config" if function == "__init__" and "vllm_config" in parameters else "return 'theirs'"
        )
        classes.setdefault((file, owner), []).append(f"def {function}({given}): {body}")
    files: dict[str, str] = {}
    for (file, owner), functions in classes.items():
        lines = [f"class {owner}:", *(f"    {one}" for one in functions)] if owner else functions
        files[file] = files.get(file, "") + "\n".join(lines) + "\n"
    return {file: files.get(file, "") + EXTRA.get(file, "") for file in {**files, **EXTRA}}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """Puts a made-up vLLM on the path; nothing of it is left behind."""
    finders = list(sys.meta_path)
    monkeypatch.setattr(vllm_plugin, "_registered", False)

    def put(version: str = "0.33.0", change: Callable[[str, str], str] = lambda file, text: text) -> Path:
        site = tmp_path / "site"
        for file, text in sources().items():
            path = site / "vllm" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(change(file, text))
            for folder in (path.parent, *path.parent.parents):
                if folder == site:
                    break
                (folder / "__init__.py").touch()
        (site / f"vllm-{version}.dist-info").mkdir()
        (site / f"vllm-{version}.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
        )
        monkeypatch.syspath_prepend(site)
        return site / "vllm"

    engine = ("vllm", "dlite.serve.vllm_plugin.v1", "dlite.serve.vllm_plugin.v2")
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("vllm.") or name in engine}
    yield put
    for name in [name for name in sys.modules if name.startswith("vllm.") or name in engine]:
        del sys.modules[name]
    sys.modules.update(hidden)
    sys.meta_path[:] = finders


def engine_config(architecture: str) -> Any:
    """As much of vLLM's config as decides whose drafter it is."""
    draft = SimpleNamespace(architectures=[architecture])
    return SimpleNamespace(speculative_config=SimpleNamespace(method="dflash", draft_model_config=draft))


# --- the table of hooks, and declining ---


def test_the_table_against_what_it_describes(fake: Fake) -> None:
    assert mismatches(fake(), HOOKS) == []


def test_each_hook_is_missed(fake: Fake) -> None:
    """A file, a class, a function or a parameter less: the place is named."""
    root = fake()
    for where, names in HOOKS.items():
        file, _, path = where.partition(":")
        text = (root / file).read_text()
        function = path.rpartition(".")[2]
        (root / file).write_text(text.replace(f"def {function}(", f"def {function}_(", 1))
        assert f"there is no {where}" in mismatches(root, HOOKS), where
        if names != "self":
            (root / file).write_text(
                text.replace(f"def {function}({names.split()[0]}=None", f"def {function}(new=None", 1)
            )
            assert any(one.startswith(f"{where} takes (new") for one in mismatches(root, HOOKS)), where
        (root / file).unlink()
        assert f"there is no {where}" in mismatches(root, HOOKS)
        (root / file).write_text(text)
    assert mismatches(root, HOOKS) == []


def renamed(file: str, text: str) -> str:
    return text.replace("sampling_metadata", "metadata") if file.endswith("llm_base_proposer.py") else text


def broken(file: str, text: str) -> str:
    return text.replace("MODELS_CONFIG_MAP", "ELSEWHERE")


@pytest.mark.parametrize(
    ("version", "change", "words"),
    [
        ("0.34.0", lambda file, text: text, "declines: vLLM 0.34.0 is installed, which dlite does not know"),
        ("0.32.1", renamed, "declines: vLLM 0.32.1 is not as expected: v1/spec_decode/llm_base_proposer.py:Spec"),
        ("0.33.0", broken, "could not start: ImportError"),
    ],
)
def test_it_declines_in_one_line_and_changes_nothing(
    fake: Fake, caplog: pytest.LogCaptureFixture, version: str, change: Any, words: str
) -> None:
    fake(version, change)
    finders = list(sys.meta_path)
    with caplog.at_level(logging.INFO, "vllm.dlite"):
        vllm_plugin.register()
        vllm_plugin.register()
    assert [words in one.message for one in caplog.records] == [True]
    assert sys.meta_path == finders
    assert import_module("vllm.model_executor.models.registry").SEEN == {}
    assert "__new__" not in vars(import_module("vllm.v1.spec_decode.dflash").DFlashProposer)
    assert import_module("vllm.v1.worker.gpu.spec_decode").init_speculator(None) == "theirs"


# --- registering ---


@pytest.mark.parametrize("imported_before", [False, True])
def test_only_dlite_drafters_get_ours(fake: Fake, caplog: pytest.LogCaptureFixture, imported_before: bool) -> None:
    fake()
    if imported_before:
        for name in (vllm_plugin.V1, vllm_plugin.V2, vllm_plugin.RUNNER):
            import_module(name)
    vllm_plugin.register()
    vllm_plugin.register()
    assert not caplog.records
    assert (vllm_plugin.V1 in sys.modules) == imported_before  # what does not draft imports nothing
    assert set(import_module("vllm.model_executor.models.registry").SEEN) == set(vllm_plugin.ARCHITECTURES)
    assert {"DLiteDraftModel": DLiteModelConfig} == import_module("vllm.model_executor.models.config").MODELS_CONFIG_MAP

    theirs = import_module(vllm_plugin.V1).DFlashProposer
    assert type(theirs(engine_config("DFlashQwen3ForCausalLM"), None, None)) is theirs
    ours = theirs(engine_config("DFlashDLiteDraftModel"), None, runner=None)
    assert isinstance(ours, theirs)
    assert type(ours).__name__ == "DLiteProposer"
    assert vllm_plugin.is_ours(ours.made)

    make = import_module(vllm_plugin.RUNNER).init_speculator
    assert make is import_module(vllm_plugin.V2).init_speculator
    assert make(engine_config("DFlashQwen3ForCausalLM"), None, None) == "theirs"
    other = engine_config("DFlashDLiteDraftModel")
    other.speculative_config.method = "dspark"
    assert make(other, None, None) == "theirs"


def test_an_engine_without_a_draft_model_is_not_ours() -> None:
    none = SimpleNamespace(speculative_config=SimpleNamespace(draft_model_config=None))
    assert not vllm_plugin.is_ours(none)


def test_a_module_is_acted_on_once(fake: Fake) -> None:
    fake()
    seen: list[Any] = []
    hooks.when_imported("vllm.config.compilation", seen.append)
    assert seen == []
    module = import_module("vllm.config.compilation")
    assert seen == [module]
    hooks.when_imported("vllm.config.compilation", seen.append)
    assert seen == [module, module]


# --- the config ---


def test_the_config_says_what_dflash_asks_for() -> None:
    part = {"target_layer_ids": [0, 3, 5], "mask_token_id": 9}
    model = SimpleNamespace(
        model="folder", hf_config=SimpleNamespace(dlite_config=part), max_model_len=10, spec_target_max_model_len=99
    )
    DLiteModelConfig.verify_and_update_model_config(model)
    assert model.hf_config.eagle_aux_hidden_state_layer_ids == [1, 4, 6]
    assert model.hf_config.dflash_config == {"mask_token_id": 9, "target_layer_ids": [0, 3, 5], "causal": False}
    assert model.max_model_len == 99  # positions are local: a short max_position_embeddings does not stop drafting
    with pytest.raises(CheckpointError, match="has no dlite_config"):
        DLiteModelConfig.verify_and_update_model_config(SimpleNamespace(model="folder", hf_config=SimpleNamespace()))
    with pytest.raises(CheckpointError, match="not ascending"):
        derived([3, 0], 0)


# --- the target ---


class Decoder(nn.Module):
    """A target as vLLM holds it: tokens and rows in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = lambda tokens: TARGET.embed(flat(tokens, 1))
        self.model.norm = lambda rows: TARGET.final_norm(flat(rows, 2))


def flat(x: Any, dim: int) -> Any:
    assert x.dim() == dim
    return x


def test_the_target_lends_its_embedding_and_norm() -> None:
    lent = lend(Decoder(), TARGET.info)
    tokens, tap = torch.tensor([[1, 2], [3, 4]]), torch.randn(2, 1, TARGET.info.hidden_size)
    assert torch.equal(lent.embed(tokens), TARGET.embed(tokens))
    torch.testing.assert_close(lent.final_norm(tap), TARGET.final_norm(tap))
    scaled = Decoder()
    scaled.model.embed_input_ids = lambda tokens: 2 * TARGET.embed(tokens)  # as Gemma's does
    assert torch.equal(lend(scaled, TARGET.info).embed(tokens), 2 * TARGET.embed(tokens))
    scaled.model.embed_tokens.base_layer = TARGET.embed  # an adapter around the table
    assert torch.equal(lend(scaled, TARGET.info).embed(tokens), TARGET.embed(tokens))
    whole = SimpleNamespace(get_language_model=Decoder)
    assert torch.equal(lend(whole, TARGET.info).embed(tokens), TARGET.embed(tokens))
    with pytest.raises(TargetError, match=r"Linear has no model\.embed_tokens"):
        lend(nn.Linear(1, 1), TARGET.info)


def test_opening_in_an_engine(tmp_path: Path) -> None:
    save_drafter(tiny_drafter(TARGET), tmp_path, replace(TARGET.info, name="somewhere else"))
    info = TARGET.info
    sizes = SimpleNamespace(
        vocab_size=info.vocab_size, hidden_size=info.hidden_size, num_hidden_layers=info.num_layers,
        num_attention_heads=2, num_key_value_heads=1, intermediate_size=8, rms_norm_eps=1e-6, max_position_embeddings=64,
    )  # fmt: skip
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        load_config=SimpleNamespace(download_dir=None),
        model_config=SimpleNamespace(hf_text_config=sizes, model="target", dtype=torch.float32),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=3, draft_model_config=SimpleNamespace(model=str(tmp_path), revision=None)
        ),
    )
    assert open_for(config, Decoder(), torch.device("cpu")).max_drafts == 4
    config.speculative_config.num_speculative_tokens = 9
    with pytest.raises(DliteError, match="9 drafts a round"):
        open_for(config, Decoder(), torch.device("cpu"))
    config.parallel_config.pipeline_parallel_size = 2
    with pytest.raises(DliteError, match="pipeline-parallel"):
        open_for(config, Decoder(), torch.device("cpu"))
    assert folder_of(str(tmp_path), None, None) == tmp_path
