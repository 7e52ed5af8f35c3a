"""``dlite serve`` with the shipped drafter: the real server, and clients who leave, ask too much, or come all at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from dlite.target.load import load_tokenizer
from tests_vllm.support import MODEL, QUESTIONS, prompts_of

START_S, ANSWER_S, TOKENS = 900, 600, 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The server's address, once it answers."""
    port, log = free_port(), tmp_path_factory.mktemp("server") / "log"
    command = [
        sys.executable, "-m", "dlite", "serve", "--target", MODEL, "--drafter", "shipped", "--engine", "vllm",
        "--max-context", "256", "--port", str(port), "--", "--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16",
        "--block-size", "32", "--disable-uvicorn-access-log",
    ]  # fmt: skip
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S) as client:
            wait_until_healthy(client, process, log)
            yield client
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_until_healthy(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers, or it is clear that it will not."""
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(1)
    pytest.fail(f"the server did not start:\n{log.read_text()[-4000:]}")


def complete(client: httpx.Client, prompt: tuple[int, ...], **options: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": list(prompt), "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    return client.post("/v1/completions", json=body | options)


def accepted(client: httpx.Client) -> float:
    """Accepted drafts so far."""
    lines = client.get("/metrics").text.splitlines()
    return sum(
        float(one.rsplit(" ", 1)[1]) for one in lines if one.startswith("vllm:spec_decode_num_accepted_tokens_total")
    )


def test_sixty_four_at_once_lose_nothing(server: httpx.Client) -> None:
    """Each gets what it gets alone."""
    prompts = prompts_of(load_tokenizer(MODEL))
    alone = [complete(server, one).raise_for_status().json()["choices"][0]["text"] for one in prompts]
    asked = [prompts[i % len(QUESTIONS)] for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda one: complete(server, one), asked))
    assert [one.status_code for one in answers] == [200] * 64
    assert [one.json()["usage"]["completion_tokens"] for one in answers] == [TOKENS] * 64
    assert [one.json()["choices"][0]["text"] for one in answers] == [alone[i % len(QUESTIONS)] for i in range(64)]
    assert accepted(server) > 64


def test_a_client_who_leaves_takes_nothing_along(server: httpx.Client) -> None:
    prompt = prompts_of(load_tokenizer(MODEL))[3]
    before = complete(server, prompt).json()["choices"][0]["text"]
    body = {
        "model": MODEL,
        "prompt": list(prompt),
        "temperature": 0,
        "max_tokens": 200,
        "ignore_eos": True,
        "stream": True,
    }
    with server.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    assert complete(server, prompt).json()["choices"][0]["text"] == before
    end = time.monotonic() + 60
    while running(server) and time.monotonic() < end:
        time.sleep(1)
    assert running(server) == 0


def running(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(one.rsplit(" ", 1)[1]) for one in lines if one.startswith("vllm:num_requests_running"))


def test_a_prompt_that_is_too_long_is_refused(server: httpx.Client) -> None:
    prompt = prompts_of(load_tokenizer(MODEL))[0]
    refused = complete(server, (prompt * 20)[:300])
    assert refused.status_code == 400
    assert "256" in refused.text
    assert complete(server, prompt).status_code == 200


def test_the_last_tokens_before_the_limit(server: httpx.Client) -> None:
    """Drafts would reach past the context there: vLLM drafts nothing, and the text goes on to its end."""
    prompt = (prompts_of(load_tokenizer(MODEL))[0] * 20)[:240]
    answer = complete(server, prompt, max_tokens=16).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 16
