"""What a server may be started with, and what it may be asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dlite.checkpoint import save_drafter
from dlite.errors import CheckpointError, ConfigError
from dlite.serve.sglang_plugin.limits import EXPECTED, MAX_RUNNING, prepare, refusal
from dlite.target.hf import HFTarget
from tests.support import tiny_drafter, tiny_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = HFTarget(tiny_model("llama"), None, "llama")
    folder = tmp_path_factory.mktemp("made")
    save_drafter(tiny_drafter(target), folder, target.info)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> str:
    """A copy, to be spoiled."""
    return str(shutil.copytree(made, tmp_path / "drafter"))


def graphs(**changed: str) -> SimpleNamespace:
    """SGLang's settings of CUDA graphs, off but for what is changed."""
    backends = {"decode": "disabled", "prefill": "disabled", **changed}
    return SimpleNamespace(**{phase: SimpleNamespace(backend=backend) for phase, backend in backends.items()})


def arguments(folder: str | None, **changed: Any) -> SimpleNamespace:
    plain = {name: expected for name, (expected, _) in EXPECTED.items()}
    own = {
        "speculative_draft_model_path": folder, "speculative_num_draft_tokens": None, "speculative_num_steps": None,
        "speculative_eagle_topk": None, "max_running_requests": None, "cuda_graph_config": graphs(),
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **own, **changed})


def test_what_is_left_out_is_filled_in(folder: str) -> None:
    given = arguments(folder)
    prepare(given)
    assert (given.speculative_num_draft_tokens, given.speculative_num_steps, given.speculative_eagle_topk) == (5, 4, 1)
    assert given.max_running_requests == MAX_RUNNING
    given = arguments(folder, speculative_num_draft_tokens=3, max_running_requests=200)
    prepare(given)
    assert (given.speculative_num_draft_tokens, given.speculative_num_steps, given.max_running_requests) == (3, 2, 200)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_argument_that_does_not_fit_is_refused(folder: str, name: str) -> None:
    expected, why = EXPECTED[name]
    other = {bool: not expected, int: 2, float: 0.5, str: "decode"}.get(type(expected), "something")
    with pytest.raises(ConfigError) as caught:
        prepare(arguments(folder, **{name: other}))
    flag = "--" + name.replace("_", "-")
    assert str(caught.value) == f"{flag} is {other} with the algorithm DLITE. Expected {expected}: {why}."


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_cuda_graphs_are_declined(folder: str, phase: str) -> None:
    with pytest.raises(ConfigError, match="CUDA graphs are on .* Start with --cuda-graph-backend-decode disabled"):
        prepare(arguments(folder, cuda_graph_config=graphs(**{phase: "full"})))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"speculative_num_draft_tokens": 6}, r"trained for 1 to 4 drafts .* Expected 2 to 5"),
        ({"speculative_num_draft_tokens": 1}, r"--speculative-num-draft-tokens is 1\."),
        ({"speculative_num_steps": 2}, r"--speculative-num-steps is 2, with 4 drafts .* Expected 4"),
        ({"speculative_eagle_topk": 4}, r"--speculative-eagle-topk is 4.* Expected 1"),
    ],
)
def test_numbers_of_drafts_that_do_not_fit(folder: str, changed: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prepare(arguments(folder, **changed))


def test_a_folder_that_is_no_dlite(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given no drafter.*--speculative-draft-model-path"):
        prepare(arguments(None))
    with pytest.raises(CheckpointError, match="there is no drafter folder"):
        prepare(arguments(str(tmp_path / "nowhere")))
    config = Path(folder) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["DFlashDraftModel"]}))
    with pytest.raises(CheckpointError, match=r"\['DFlashDraftModel'\]\. Expected DLiteDraftModel"):
        prepare(arguments(folder))


PLAIN = {
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0, "beam_width": None,
}  # fmt: skip


def request(**changed: Any) -> SimpleNamespace:
    own = {"custom_logit_processor": None, "return_hidden_states": False}
    sampling = {name: changed.pop(name, value) for name, value in PLAIN.items()}
    return SimpleNamespace(sampling_params=SimpleNamespace(**sampling), **{**own, **changed})


def test_requests() -> None:
    assert refusal(request()) is None
    assert refusal(request(beam_width=1)) is None
    asked = {
        "frequency_penalty": 0.5, "presence_penalty": -1.0, "repetition_penalty": 1.1, "min_new_tokens": 3,
        "custom_logit_processor": "code", "return_hidden_states": True, "beam_width": 4,
    }  # fmt: skip
    for name, value in asked.items():
        reason = refusal(request(**{name: value}))
        assert reason is not None
        if name in PLAIN and name != "beam_width":
            assert reason.startswith(f"{name} is {value}. ")
            assert f"Send {int(PLAIN[name])}" in reason
        else:
            assert reason.startswith("DLITE does not serve ")


def test_a_config_without_a_block_size_is_no_crash(folder: str) -> None:
    config = Path(folder) / "config.json"
    data = json.loads(config.read_text())
    del data["block_size"]
    config.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="lacks a block_size of 2"):
        prepare(arguments(folder))
