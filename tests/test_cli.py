"""The command line on a tiny target of its own: every verb answers, and a mistake is one sentence and status 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dlite import cli
from dlite.checkpoint import load_drafter, save_drafter
from dlite.config import recipe_names
from dlite.data.conversations import is_held_out
from dlite.data.jsonl import read_jsonl
from dlite.target.load import load_target
from tests.data.support import target_folder
from tests.support import Run, tiny_drafter

COMMANDS = ["generate", "regenerate", "features", "train", "bench", "demo", "recipes", "drafters"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random model of a context of 300 and its tokenizer."""
    return target_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory, target: Path) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    loaded = load_target(str(target))
    save_drafter(tiny_drafter(loaded), folder, loaded.info)
    return folder


def lines(folder: Path, *records: Any) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    assert "--help" in result.output


def test_the_commands_are_these() -> None:
    names = [c.name or c.callback.__name__ for c in cli.app.registered_commands if c.callback]
    assert set(COMMANDS) <= set(names)
    output = CliRunner().invoke(cli.app, ["--help"]).output
    assert [name for name in names if name not in output] == []


def test_recipes(dlite: Run) -> None:
    status, out, _ = dlite("recipes")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == recipe_names()


def test_generate_is_the_same_with_and_without_a_drafter(dlite: Run, target: Path, drafter: Path) -> None:
    asked = ("generate", "--target", target, "--prompt", "hello", "--max-new-tokens", 12, "--json")
    answers = []
    for name in ("none", drafter):
        status, out, _ = dlite(*asked, "--drafter", name)
        assert status == 0
        answers.append(json.loads(out))
    fields = {
        "text",
        "token_ids",
        "finish",
        "prompt_tokens",
        "rounds",
        "rounds_off",
        "drafts_per_round",
        "tau",
        "acceptance_by_position",
        "seconds",
    }
    assert [a.keys() for a in answers] == [fields, fields]
    plain, drafted = answers
    assert {k: plain[k] for k in ("text", "token_ids", "finish")} == {
        k: drafted[k] for k in ("text", "token_ids", "finish")
    }
    assert (len(plain["token_ids"]), plain["rounds"], plain["tau"], plain["acceptance_by_position"]) == (
        12,
        11,
        1.0,
        [],
    )
    assert len(drafted["acceptance_by_position"]) == 4


def test_streamed_text_is_the_text(dlite: Run, target: Path) -> None:
    asked = ("generate", "--target", target, "--drafter", "none", "--prompt", "hello", "--raw", "--max-new-tokens", 9)
    _, streamed, note = dlite(*asked)
    assert streamed == json.loads(dlite(*asked, "--json")[1])["text"]
    assert "9 tokens, 8 rounds, tau 1.00" in note


def test_generate_a_batch(dlite: Run, target: Path, tmp_path: Path) -> None:
    path = lines(tmp_path, {"prompt": "one"}, {"id": "b", "prompt": "two"})
    status, out, _ = dlite("generate", "--target", target, "--drafter", "none", "--batch", path, "--max-new-tokens", 5)
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["set-1", "set-b"]


def test_a_raw_batch_continues_the_texts_themselves(dlite: Run, target: Path, tmp_path: Path) -> None:
    """Once --raw was ignored: every text went through the chat template."""
    path = lines(tmp_path, {"prompt": "one"}, {"prompt_ids": [5, 6]})
    asked = ("generate", "--target", target, "--drafter", "none", "--max-new-tokens", 5)
    answers = [json.loads(line) for line in dlite(*asked, "--batch", path, "--raw")[1].splitlines()]
    assert [a["prompt_tokens"] for a in answers] == [3, 2]
    alone = json.loads(dlite(*asked, "--prompt", "one", "--raw", "--json")[1])
    assert answers[0]["token_ids"] == alone["token_ids"]


def test_messages_and_tools_reach_the_target(dlite: Run, target: Path, tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    messages = [{"role": "user", "content": "what?"}]
    counts = []
    for body in (messages, {"messages": messages}, {"messages": messages, "tools": [{"name": "look"}]}):
        path.write_text(json.dumps(body))
        status, out, _ = dlite(
            "generate", "--target", target, "--drafter", "none", "--messages", path, "--max-new-tokens", 2, "--json"
        )
        assert status == 0
        counts.append(json.loads(out)["prompt_tokens"])
    assert counts[0] == counts[1] < counts[2]


def test_from_prompts_to_a_drafter(dlite: Run, target: Path, tmp_path: Path) -> None:
    """regenerate, features, train and generate hand over to each other, and each goes on where it stopped."""
    ids = [i for i in range(20) if not is_held_out(f"set-{i}")][:5]
    prompts = lines(tmp_path, *({"id": i, "prompt": "one two three"[i:]} for i in ids))
    answers, store, out = tmp_path / "answers.jsonl", tmp_path / "store", tmp_path / "run"
    ask = ("regenerate", prompts, "--out", answers, "--target", target, "--max-new-tokens", 20)
    assert json.loads(dlite(*ask, "--limit", 3)[1])["written"] == 3
    tally = json.loads(dlite(*ask)[1])
    assert (tally["resumed"], tally["written"]) == (3, 2)
    assert {r["target"] for _, r in read_jsonl(answers)} == {str(target)}
    status, _, note = dlite(*ask, "--temperature", 0.5)
    assert status == 2
    assert "made with temperature 0.0. Expected 0.5" in note
    other = tmp_path / "other.jsonl"
    other.write_text(answers.read_text().replace(json.dumps(str(target)), '"another"'))
    changes = [
        f"target={target}", "drafter.rank=8", "drafter.draft_vocab_size=40", "train.batch_blocks=8", "stages.0.window=4",
        "stages.0.steps=2", "stages.1.steps=2", "stages.2.steps=2", "drafter.num_taps=3",
    ]  # fmt: skip
    changed = [word for change in changes for word in ("--set", change)]
    for verb in (("features", other, "--recipe", "tiny"), ("train", "tiny", "--data", other)):
        status, said, note = dlite(*verb, "--out", store, *changed)
        assert (status, said) == (2, "")
        assert "was answered by another. Expected answers of" in note
    status, said, note = dlite("features", answers, "--recipe", "tiny", "--out", store, "--history", 4, *changed)
    assert status == 0, note
    assert json.loads(said)["blocks_added"] > 8
    assert "5 conversations, " in note
    assert (
        json.loads(dlite("features", answers, "--recipe", "tiny", "--out", store, "--history", 4, *changed)[1])[
            "blocks_added"
        ]
        == 0
    )
    status, said, note = dlite("train", "tiny", "--data", answers, "--store", store, "--out", out, *changed)
    assert status == 0, note
    folder = json.loads(said)["drafter"]
    assert load_drafter(folder, load_target(str(target)).info)[1].target == str(target)
    assert len((out / "losses.jsonl").read_text().splitlines()) == 6
    said = dlite(
        "generate", "--target", target, "--drafter", folder, "--prompt", "one", "--max-new-tokens", 6, "--json"
    )[1]
    assert len(json.loads(said)["token_ids"]) == 6
    status, _, note = dlite(
        "train", "tiny", "--data", answers, "--store", store, "--out", out, *changed, "--set", "train.seed=1"
    )
    assert status == 2
    assert "was begun with another recipe or other data" in note


MISTAKES: dict[str, tuple[list[str], str]] = {
    "missing drafter": (
        ["generate", "--target", "TARGET", "--drafter", "nowhere", "--prompt", "a"],
        "there is no drafter 'nowhere'",
    ),
    "no shipped drafter": (["generate", "--target", "TARGET", "--prompt", "a"], "no drafter ships with dlite for"),
    "malformed batch": (
        ["generate", "--target", "TARGET", "--drafter", "none", "--batch", "BROKEN"],
        "set.jsonl, line 2: ",
    ),
    "several turns in a batch": (
        ["generate", "--target", "TARGET", "--drafter", "none", "--batch", "TURNS"],
        "prompt 'set-1' has 2 turns. Expected one",
    ),
    "messages in a raw batch": (
        ["generate", "--target", "TARGET", "--drafter", "none", "--batch", "CHAT", "--raw"],
        "prompt 'set-1' has messages. Expected text to continue. Leave --raw out",
    ),
    "raw messages": (["generate", "--messages", "CHAT", "--raw"], "--raw continues text as it is"),
    "a drafter beside a server": (
        ["regenerate", "PROMPTS", "--server", "http://127.0.0.1:9/v1", "--drafter", "DRAFTER", "--out", "OUT"],
        "--drafter would be ignored: with --server the server decides",
    ),
    "a dtype beside a server": (
        [
            "regenerate",
            "PROMPTS",
            "--server",
            "http://127.0.0.1:9/v1",
            "--device",
            "cuda",
            "--dtype",
            "bfloat16",
            "--out",
            "OUT",
        ],
        "--device and --dtype would be ignored: with --server",
    ),
    "malformed prompts": (["regenerate", "BROKEN", "--target", "TARGET", "--out", "OUT"], "set.jsonl, line 2: "),
    "no tokenizer": (
        ["regenerate", "PROMPTS", "--server", "http://127.0.0.1:9/v1", "--target", "/none", "--out", "OUT"],
        "/none",
    ),
    "missing prompts": (["regenerate", "none.jsonl", "--target", "TARGET", "--out", "OUT"], "none.jsonl: "),
    "empty prompt": (
        ["generate", "--target", "TARGET", "--drafter", "none", "--raw", "--prompt", ""],
        "the prompt is empty",
    ),
    "long prompt": (
        ["generate", "--target", "TARGET", "--drafter", "none", "--raw", "--prompt", "a" * 300],
        "the prompt has 300 tokens. ",
    ),
    "K of 0": (
        ["generate", "--target", "TARGET", "--drafter", "DRAFTER", "--prompt", "a", "-K", "0"],
        "K is 0. This drafter proposes 1 to 4",
    ),
    "K too large": (["generate", "--target", "TARGET", "--drafter", "DRAFTER", "--prompt", "a", "-K", "9"], "K is 9. "),
    "no room": (
        ["generate", "--target", "TARGET", "--drafter", "none", "--prompt", "a", "--max-new-tokens", "0"],
        "max_new_tokens is 0",
    ),
    "temperature": (["generate", "--prompt", "a", "--temperature", "-1"], "temperature is -1.0. Expected"),
    "rule": (["generate", "--prompt", "a", "--rule", "luck"], "rule is luck. Expected rejection, block or match"),
    "two prompts": (
        ["generate", "--prompt", "a", "--batch", "x"],
        "give exactly one of --prompt, --messages and --batch",
    ),
    "no prompt": (["generate"], "give exactly one of --prompt, --messages and --batch"),
    "messages that are not JSON": (["generate", "--messages", "BROKEN"], "cannot be read as JSON"),
    "missing target": (["generate", "--target", "/none", "--prompt", "a"], "no usable target at '/none'"),
    "dtype": (
        ["generate", "--target", "TARGET", "--dtype", "int8", "--prompt", "a"],
        "dtype 'int8' is not known. Expected one of",
    ),
    "recipe key": (
        ["train", "tiny", "--data", "x.jsonl", "--out", "OUT", "--set", "drafter.rnak=3"],
        "unknown key drafter.rnak. Did you mean 'rank'?",
    ),
    "recipe name": (["train", "tiyn", "--data", "x.jsonl", "--out", "OUT"], "there is no recipe 'tiyn'"),
    "missing data": (["train", "tiny", "--data", "x.jsonl", "--out", "OUT"], "x.jsonl: "),
    "not conversations": (
        ["features", "PROMPTS", "--recipe", "tiny", "--out", "OUT"],
        "line 1: not a regenerated conversation",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_status_2(
    dlite: Run, target: Path, drafter: Path, tmp_path: Path, name: str
) -> None:
    arguments, words = MISTAKES[name]
    for name in "ptc":
        (tmp_path / name).mkdir()
    places = {
        "TARGET": target, "DRAFTER": drafter, "OUT": tmp_path / "out", "BROKEN": lines(tmp_path, {"prompt": "a"}, '{"prompt": '),
        "PROMPTS": lines(tmp_path / "p", {"prompt": "a"}), "TURNS": lines(tmp_path / "t", {"turns": ["a", "b"]}),
        "CHAT": lines(tmp_path / "c", {"messages": [{"role": "user", "content": "a"}]}),
    }  # fmt: skip
    status, out, err = dlite(*(places.get(a, a) for a in arguments))
    assert status == 2
    assert out == ""
    assert err.startswith("dlite: ")
    assert words in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


def test_an_interrupted_bench_ends_as_shells_expect(
    dlite: Run, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: Any, **__: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("dlite.bench.command.bench_files", press)
    asked = ("bench", "--target", target, "--workload", lines(tmp_path, {"prompt": "a"}), "--out", tmp_path / "out")
    assert dlite(*asked)[0] == 130


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "dlite", "train", "tiny", "--data", "x", "--out", "y", "--set", "trian.seed=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dlite: the recipe tiny has an unknown key trian. Did you mean 'train'?\n"


@pytest.mark.model
def test_the_built_in_target(dlite: Run, tmp_path: Path) -> None:
    path = tmp_path / "messages.json"
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Name a colour."}], "tools": [tool]}))
    asked = ("generate", "--drafter", "none", "--max-new-tokens", 4, "--json")
    plain = json.loads(dlite(*asked, "--prompt", "Name a colour.")[1])
    tooled = json.loads(dlite(*asked, "--messages", path)[1])
    assert len(plain["token_ids"]) <= 4
    assert (plain["tau"], plain["rounds"]) == (1.0, len(plain["token_ids"]) - 1)
    assert plain["text"].strip()
    assert tooled["prompt_tokens"] > plain["prompt_tokens"] + 20
