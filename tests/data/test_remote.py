"""Regeneration through a server: ids out, ids in, and a clear word when it cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from dlite.data.conversations import read_conversations
from dlite.data.jsonl import read_jsonl
from dlite.data.prompts import Prompt
from dlite.data.regenerate import RegenerateSettings, regenerate
from dlite.data.remote import regenerate_remote
from dlite.drafters.none import NoDrafter
from dlite.engine.request import Request
from dlite.errors import DataError
from dlite.sampling import SamplingParams
from dlite.target.hf import tokenizer_hash
from tests.data.support import PLAIN, chatty_target, make_tokenizer
from tests.support import plain

TOKENIZER = make_tokenizer(PLAIN)
PROMPTS = [Prompt(f"p{i}", "s", (), (f"question {i}",)) for i in range(5)]
SETTINGS = RegenerateSettings(max_new_tokens=7, batch=2, sampling=SamplingParams(temperature=0.5, seed=3))
Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def server(answer: Answer, models: Any = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a local server that answers each body and lists its models, and the bodies it has seen."""
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path})
            self.reply(*answer(seen[-1]))

        def do_GET(self) -> None:
            self.reply(404 if models is None else 200, models)

        def reply(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}/v1", seen
        finally:
            http.shutdown()
            thread.join()


def echo(body: dict[str, Any]) -> tuple[int, Any]:
    """The prompt's last ids backwards, finished when there are few."""
    ids = body["prompt"][-4:][::-1]
    return 200, {
        "choices": [
            {"token_ids": ids, "text": "not read", "finish_reason": "stop" if len(body["prompt"]) % 2 else "length"}
        ]
    }


def ask(
    address: str,
    out: Path,
    prompts: list[Prompt] = PROMPTS,
    settings: RegenerateSettings = SETTINGS,
    tokenizer: Any = TOKENIZER,
) -> Any:
    return regenerate_remote(address, "the/target", prompts, out, settings, tokenizer=tokenizer)


def test_ids_are_sent_and_kept(tmp_path: Path) -> None:
    with server(echo) as (address, seen):
        tally = ask(address, tmp_path / "a.jsonl")
    assert (tally.written, tally.tokens) == (5, 20)
    options = {"max_tokens": 7, "temperature": 0.5, "return_token_ids": True, "model": "the/target"}
    assert all(body.items() >= (options | {"path": "/v1/completions"}).items() for body in seen)
    assert len({body["seed"] for body in seen}) == len(seen)  # a prompt's own, whatever the others are
    talks = list(read_conversations(tmp_path / "a.jsonl", all_answers=True))
    assert {t.id for t in talks} == {p.id for p in PROMPTS}
    for talk in talks:
        prompt, answer = talk.ids[:-4], talk.ids[-4:]
        assert TOKENIZER.decode(prompt) == f"<|start|>user\nquestion {talk.id[1:]}<|end|>\n<|start|>assistant\n"
        assert answer == prompt[-4:][::-1]
        assert talk.wrote == (False,) * len(prompt) + (True,) * 4
        assert talk.finished == (len(prompt) % 2 == 1)


def test_a_stopped_run_asks_only_for_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    with server(echo) as (address, seen):
        ask(address, out, PROMPTS[:3])
        out.write_bytes(out.read_bytes() + b'{"id": "p4", "to')
        tally = ask(address, out)
    assert (tally.resumed, tally.written, len(seen)) == (3, 2, 5)
    assert len(list(read_conversations(out, all_answers=True))) == 5


def test_what_was_answered_stays_when_the_server_fails(tmp_path: Path) -> None:
    def failing(body: dict[str, Any]) -> tuple[int, Any]:
        return (500, {}) if "3" in TOKENIZER.decode(body["prompt"]) else echo(body)

    out = tmp_path / "a.jsonl"
    with server(failing) as (address, _), pytest.raises(DataError, match="did not answer prompt 'p3': HTTPStatusError"):
        ask(address, out, settings=RegenerateSettings(batch=1))
    assert [t.id for t in read_conversations(out, all_answers=True)] == ["p0", "p1", "p2"]


@pytest.mark.parametrize("choice", [{"text": "words"}, {"token_ids": None}, {"token_ids": "1 2"}])
def test_an_answer_without_token_ids_is_refused(tmp_path: Path, choice: dict[str, Any]) -> None:
    with server(lambda _: (200, {"choices": [choice]})) as (address, _):
        with pytest.raises(DataError, match="returned no token_ids. Expected one that honours return_token_ids"):
            ask(address, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == b""


@pytest.mark.parametrize("body", [{}, [], {"choices": []}, {"choices": None}, {"choices": ["text"]}, "words"])
def test_an_answer_of_another_shape_is_refused(tmp_path: Path, body: Any) -> None:
    with server(lambda _: (200, body)) as (address, _):
        with pytest.raises(DataError, match="did not answer prompt 'p0'.*Expected an OpenAI-compatible /v1 root"):
            ask(address, tmp_path / "a.jsonl", PROMPTS[:1])


def test_a_server_that_is_down(tmp_path: Path) -> None:
    with server(echo) as (address, _):
        pass
    with pytest.raises(
        DataError, match=r"the server at http://127\.0\.0\.1:.* did not answer prompt 'p0': ConnectError"
    ):
        ask(address, tmp_path / "a.jsonl", PROMPTS[:1])


def test_turns_through_a_server_are_those_of_a_local_target(tmp_path: Path) -> None:
    """Same ids, same spans, same ends: a server that serves the target is the target."""
    target = chatty_target(seed=1)
    words = ["a", "e", "i", "t s", "u r"]
    prompts = [Prompt(f"p{i}", "s", (), (word, "sun", "rain", "tea")) for i, word in enumerate(words)]
    settings = RegenerateSettings(max_new_tokens=90, batch=2)

    def serve(body: dict[str, Any]) -> tuple[int, Any]:
        (answer,) = plain(target, [Request(tuple(body["prompt"]), body["max_tokens"])])
        return 200, {"choices": [{"token_ids": answer.token_ids, "finish_reason": answer.finish}]}

    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    local = regenerate(target, NoDrafter(), prompts, here, settings)
    models = {"data": [{"id": "the/target", "max_model_len": target.info.context_length}]}
    with server(serve, models) as (address, seen):
        assert ask(address, there, prompts, settings, target.tokenizer) == local
    assert len(seen) > len(prompts)
    wanted, found = ({record["id"]: record for _, record in read_jsonl(path)} for path in (here, there))
    made = {"target": "the/target", "tokenizer_hash": tokenizer_hash(target.tokenizer)}
    assert found == {name: record | made for name, record in wanted.items()}
    assert max(len(record["wrote"]) for record in found.values()) > 1


@pytest.mark.parametrize("told", [True, False])
def test_prompts_beyond_the_context_are_counted_and_passed_over(tmp_path: Path, told: bool) -> None:
    """Once such a prompt was sent, and the server's refusal ended the run."""
    tokenizer = make_tokenizer(PLAIN)
    tokenizer.model_max_length = 99 if told else 60
    models = {"data": [{"id": "other", "max_model_len": 7}, {"id": "the/target", "max_model_len": 60}]}
    prompts = [Prompt(f"p{i}", "s", (), ("a" * i,)) for i in (20, 36, 40, 41, 60)]  # the template adds 19 tokens
    with server(echo, models if told else None) as (address, seen):
        tally = ask(address, tmp_path / "a.jsonl", prompts, tokenizer=tokenizer)
    # A server also refuses an answer that could outgrow its context.
    assert {len(body["prompt"]): body["max_tokens"] for body in seen} == {39: 7, 55: 5, 59: 1}
    assert (tally.written, tally.too_long) == (3, 2)


def test_a_failure_between_turns_keeps_what_was_finished(tmp_path: Path) -> None:
    def failing(body: dict[str, Any]) -> tuple[int, Any]:
        text = TOKENIZER.decode(body["prompt"])
        return (500, {}) if "later" in text else (200, {"choices": [{"token_ids": [9, 0], "finish_reason": "stop"}]})

    out = tmp_path / "a.jsonl"
    prompts = [*PROMPTS[:3], Prompt("talk", "s", (), ("first", "later"))]
    with server(failing) as (address, _), pytest.raises(DataError, match="did not answer prompt 'talk'"):
        ask(address, out, prompts)
    assert {t.id for t in read_conversations(out, all_answers=True)} == {"p0", "p1", "p2"}
