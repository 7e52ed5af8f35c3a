"""Load on a local server that streams, errs, hangs up and dawdles as told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from time import sleep
from typing import Any

import pytest

from dlite.audit.server import Count
from dlite.bench.suites import Call
from dlite.errors import DataError
from dlite.serve.load import Answered, Level, LoadSettings, Server, measure, since
from dlite.serve.load_report import HEADER, build, cells, figures, markdown, write

CALLS = [
    Call(f"c{i}", "w", f"c{i}", messages=({"role": "user", "content": f"{i}"},), max_new_tokens=6) for i in range(3)
]
Behave = Callable[["Fake", dict[str, Any]], None]


class Fake:
    """What a handler can do with one request."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.handler = handler

    def open(self, status: int = 200) -> None:
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Transfer-Encoding", "chunked")
        self.handler.end_headers()

    def send(self, value: Any) -> None:
        data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def piece(self, text: str, finish: str | None = None) -> None:
        self.send({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})

    def close(self) -> None:
        self.handler.wfile.write(b"0\r\n\r\n")


def talk(fake: Fake, body: dict[str, Any]) -> None:
    """Six tokens in three pieces, as a server that drafts sends them."""
    fake.open()
    fake.send({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    for text in ("ab", "cd"):
        fake.piece(text)
        sleep(0.005)
    fake.piece("ef", "length")
    fake.send({"choices": [], "usage": {"completion_tokens": 6}})
    fake.send("[DONE]")
    fake.close()


class Serving:
    """A server's address, the bodies it has seen and the most that were in flight at once."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.running = self.most = 0
        self.url = ""
        self.lock = Lock()


@contextmanager
def serving(behave: Behave = talk, models: Any = None, counting: bool = False) -> Iterator[Serving]:
    state = Serving()
    models = {"data": [{"id": "m", "max_model_len": 300}]} if models is None else models

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with state.lock:
                state.seen.append(body | {"path": self.path})
                state.running += 1
                state.most = max(state.most, state.running)
            try:
                behave(Fake(self), body)
            finally:
                with state.lock:
                    state.running -= 1

        def do_GET(self) -> None:
            served = len(state.seen)
            metrics = "".join(
                f"vllm:spec_decode_num_{name}_total{{}} {times * served}\n"
                for name, times in (("drafts", 2), ("draft_tokens", 14), ("accepted_tokens", 4))
            )
            text = metrics if self.path == "/metrics" else json.dumps(models)
            data = text.encode()
            self.send_response(404 if self.path == "/metrics" and not counting else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    class Quiet(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A handler that breaks off on purpose."""

    with Quiet(("127.0.0.1", 0), Handler) as http:
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}/v1"
        try:
            yield state
        finally:
            http.shutdown()
            thread.join()


def server_at(state: Serving, **settings: Any) -> Server:
    return Server(state.url + "/", None, LoadSettings(**settings))


def test_so_many_are_in_flight_and_the_warm_up_is_forgotten() -> None:
    with serving() as state:
        level = measure(server_at(state, warmup=2), CALLS, 4)
    assert len(state.seen) == 2 + 8  # two for each place
    assert state.most == 4
    assert len(level.answers) == 8
    assert sorted(one.call for one in level.answers) == sorted(["c0", "c1", "c2"] * 2 + ["c0", "c1"])
    for one in level.answers:
        assert (one.tokens, one.counted, one.error) == (6, True, None)
        assert one.first is not None
        assert 0 <= one.start < one.first < one.end <= level.seconds


def test_what_is_asked_is_a_greedy_stream() -> None:
    ids = Call("i", "w", "i", ids=(4, 5), max_new_tokens=3)
    tools = Call("t", "w", "t", messages=CALLS[0].messages, tools=({"name": "look"},), max_new_tokens=3)
    with serving() as state:
        measure(server_at(state, warmup=0, seed=5), [CALLS[0], ids, tools], 1)
    chat, completion, tool = state.seen
    expected = {"model": "m", "max_tokens": 6, "temperature": 0.0, "seed": 5, "stream": True}
    assert expected.items() <= chat.items()
    assert (chat["path"], chat["messages"], "tools" in chat) == (
        "/v1/chat/completions",
        [dict(CALLS[0].messages[0])],
        False,
    )
    assert (completion["path"], completion["prompt"]) == ("/v1/completions", [4, 5])
    assert tool["tools"] == [{"name": "look"}]


def test_sixty_four_in_flight_lose_nothing() -> None:
    with serving() as state:
        level = measure(server_at(state, warmup=0), CALLS, 64)
    assert [one.error for one in level.answers] == [None] * 128


def refuse(fake: Fake, body: dict[str, Any]) -> None:
    fake.handler.send_response(400)
    fake.handler.send_header("Content-Length", "8")
    fake.handler.end_headers()
    fake.handler.wfile.write(b"too long")


def hang_up(fake: Fake, body: dict[str, Any]) -> None:
    fake.open()
    fake.piece("ab")
    fake.handler.close_connection = True
    fake.handler.connection.shutdown(2)


def stop_early(fake: Fake, body: dict[str, Any]) -> None:
    fake.open()
    fake.piece("ab")
    fake.close()


def complain(fake: Fake, body: dict[str, Any]) -> None:
    fake.open()
    fake.piece("ab")
    fake.send({"error": {"message": "out of memory"}})
    fake.close()


def babble(fake: Fake, body: dict[str, Any]) -> None:
    fake.open()
    fake.send("{no json")
    fake.close()


def dawdle(fake: Fake, body: dict[str, Any]) -> None:
    fake.open()
    fake.piece("ab")
    sleep(0.6)


TROUBLE: list[tuple[Behave, str]] = [
    (refuse, "status 400: too long"),
    (hang_up, "RemoteProtocolError"),
    (stop_early, "the stream ended before the answer did"),
    (complain, "an error in the stream: {'message': 'out of memory'}"),
    (babble, "JSONDecodeError"),
    (dawdle, "ReadTimeout"),
]


@pytest.mark.parametrize(("behave", "words"), TROUBLE, ids=lambda x: getattr(x, "__name__", ""))
def test_trouble_is_counted_and_costs_only_its_own_request(behave: Behave, words: str) -> None:
    def sometimes(fake: Fake, body: dict[str, Any]) -> None:
        (behave if body["messages"][0]["content"] == "1" else talk)(fake, body)

    with serving(sometimes) as state:
        level = measure(server_at(state, warmup=0, timeout=0.3), CALLS, 2)
    row = figures(level)
    assert (row["requests"], sum(row["errors"].values()), row["tokens"]) == (4, 1, 18)
    assert words in next(iter(row["errors"]))


def test_pieces_are_counted_where_the_server_counts_nothing() -> None:
    def plain(fake: Fake, body: dict[str, Any]) -> None:
        fake.open()
        fake.piece("ab")
        fake.piece("", "stop")
        fake.close()

    with serving(plain) as state:
        server = server_at(state)
        level = measure(server, CALLS, 1)
    assert {(one.tokens, one.counted) for one in level.answers} == {(1, False)}
    report = build(server, [level], settings=server.settings, argv=[], conditions={})
    assert "1 in flight: the server does not count tokens, so pieces" in markdown(report)


def test_acceptance_is_what_was_counted_in_between() -> None:
    with serving(counting=True) as state:
        level = measure(server_at(state, warmup=5), CALLS, 1)
    assert level.drafts == Count(None, 6, 42, 12, ())
    assert figures(level)["drafts"]["tau"] == 3.0
    old, new = Count(None, 5, 35, 9, (5, 4)), Count(None, 9, 63, 20, (8, 6, 2))
    assert since(old, new) == Count(None, 4, 28, 11, (3, 2, 2))
    assert since(None, new) == new
    assert since(old, None) is None
    assert since(new, new) is None


def level_of(*answers: Answered) -> Level:
    return Level(2, 4.0, answers, None)


def test_figures_by_hand() -> None:
    row = figures(
        level_of(
            Answered("a", 0.0, 1.0, 3.0, 5, True),
            Answered("b", 1.0, 1.5, 4.0, 6, True),
            Answered("c", 1.0, 1.5, 1.6, 9, True, "boom"),
        )
    )
    assert (row["tokens"], row["tokens_per_second"]) == (11, 11 / 4)
    assert row["first_token_seconds"]["mean"] == 0.75
    assert row["token_milliseconds"]["mean"] == 500.0
    assert row["call_seconds"]["p50"] == 3.0
    assert row["errors"] == {"boom": 1}
    assert cells(row) == ["2", "3", "1", "2.8", "0.750", "0.975", "500.0", "500.0", "3.00", "-", "-"]


def test_a_level_in_which_nothing_was_answered() -> None:
    row = figures(level_of(Answered("a", 0.0, None, 3.0, 0, False, "boom")))
    assert cells(row) == ["2", "1", "1", "0.0", "-", "-", "-", "-", "-", "-", "-"]


def test_json_first_and_markdown_from_it(tmp_path: Path) -> None:
    with serving() as state:
        server = server_at(state)
        levels = [measure(server, CALLS, n) for n in (1, 2)]
    report = build(server, levels, settings=server.settings, argv=["dlite", "bench"], conditions={"calls": "3"})
    text = write(report, tmp_path / "out")
    kept = json.loads((tmp_path / "out" / "report.json").read_text())
    assert markdown(kept) == text == (tmp_path / "out" / "report.md").read_text()
    assert [len(level["answers"]) for level in kept["levels"]] == [3, 4]
    assert text.startswith(
        f"# dlite bench: m at {state.url}\n\ngreedy · closed loop, warm-up left out, streamed · calls 3"
    )
    assert f"| {' | '.join(HEADER)} |" in text
    assert "the server tells nothing of drafts" in text


def test_the_model_is_the_servers_only_one_or_the_named_one() -> None:
    with serving() as state:
        server = Server(state.url, "a folder", LoadSettings())
        assert (server.model, server.context) == ("m", 300)
    with serving(models={"data": [{"id": "a"}, {"id": "b"}]}) as state:
        assert Server(state.url, "b", LoadSettings()).model == "b"
        with pytest.raises(DataError, match="has the models a, b. Expected one name. Give it: --target NAME"):
            Server(state.url, None, LoadSettings())
    for models in ([], {"data": 3}, {"data": [{}]}):
        with serving(models=models) as state, pytest.raises(DataError, match="lists no models"):
            Server(state.url, None, LoadSettings())
    with pytest.raises(DataError, match=r"ConnectError.*Expected an OpenAI-compatible /v1 root"):
        Server("http://127.0.0.1:9/v1", None, LoadSettings())
