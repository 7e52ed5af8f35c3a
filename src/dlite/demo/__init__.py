"""``dlite demo``: what it does, on the embedded model and prompts of our own writing."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from dlite.api import generate
from dlite.bench.page import write_html
from dlite.bench.report import build, write_json
from dlite.bench.run import Arm, BenchSettings, run
from dlite.bench.suites import Call, load
from dlite.bench.tables import plural, show
from dlite.data.chat import render
from dlite.data.jsonl import read_jsonl
from dlite.drafters.base import Drafter
from dlite.target.base import Target

CALLS = Path(__file__).with_name("calls.jsonl")


def demo(
    target: Target, drafter: Drafter, out: Path, *, K: int | None, max_new_tokens: int, name: str, argv: list[str]
) -> bool:
    """Stream each prompt with accepted drafts marked, then measure plain against drafted; True if the texts were equal."""
    console = Console()
    calls = load(CALLS, workload="demo", max_new_tokens=max_new_tokens)
    titles = [record["id"] for _, record in read_jsonl(CALLS)]
    console.print(
        Text("Accepted drafts are green and underlined: tokens the target did not have to write one by one.\n")
    )
    for call, title in zip(calls, titles, strict=True):
        _stream(console, target, drafter, call, title, K)
    result = run(
        target, [Arm("DLite", drafter, K)], calls, render=render, settings=BenchSettings(warmup_tokens=4), progress=True
    )
    report = build(result, argv=argv, conditions={"drafter": name})
    write_json(report, out / "demo.json")
    page = out / "demo.html"
    write_html(report, page)
    show(report, console)
    same = all(result.lossless(arm.name) for arm in result.arms)
    console.print(
        f"\nidentical to plain decoding: {'yes' if same else 'NO'}\nreport: {page.resolve()}", highlight=False
    )
    return same


def _stream(console: Console, target: Target, drafter: Drafter, call: Call, title: str, K: int | None) -> None:
    question = str(call.messages[-1]["content"]).strip().splitlines()[0]
    console.print(Rule(f"{title}: {plural(len(call.messages), 'message')}, the last: {question[:60]}", align="left"))

    def piece(text: str, accepted: bool) -> None:
        console.print(Text(text, style="green underline" if accepted else ""), end="", soft_wrap=True)

    answer = generate(
        target,
        drafter,
        messages=call.messages,
        tools=call.tools,
        K=K,
        max_new_tokens=call.max_new_tokens,
        on_text=piece,
    )
    console.print(
        f"\n[{len(answer.token_ids)} tokens in {len(answer.rounds)} rounds: tau {answer.tau:.2f}; prompt of "
        f"{answer.prompt_tokens} tokens]\n",
        style="dim",
        markup=False,
        highlight=False,
    )
