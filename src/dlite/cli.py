"""The command line: verbs only. Each reads its arguments, calls one part of the library and prints what came back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dlite.commands.adapt import adapt
from dlite.commands.audit import audit
from dlite.commands.doctor import doctor
from dlite.commands.drafters import drafters
from dlite.commands.serve import serve
from dlite.commands.study import study
from dlite.commands.workloads import workloads
from dlite.errors import DataError, DliteError, RequestError

app = typer.Typer(
    help="Train, measure and serve history-free draft models for speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

TargetOption = Annotated[
    str, typer.Option(help="Hub id, folder, .gguf file, or built-in name (smollm2-135m).", show_default=True)
]
DeviceOption = Annotated[str, typer.Option(help="Where to run: cpu, cuda, cuda:1, ...")]
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16. Exact losslessness needs float32.")]
DrafterOption = Annotated[str, typer.Option(help="'shipped', a drafter folder, or a name from dlite drafters.")]


def main() -> None:
    """Entry point: a user's mistake is one sentence and status 2; a fault of ours keeps its traceback."""
    try:
        app()
    except DliteError as error:
        print(f"dlite: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"dlite: {error.filename or 'a file'} cannot be used: {error.strerror or error}.", file=sys.stderr)
        sys.exit(2)


@app.command()
def generate(
    target: TargetOption = "smollm2-135m",
    drafter: DrafterOption = "shipped",
    prompt: Annotated[
        str | None, typer.Option(help="A user message; with --raw, the text to continue as it is.")
    ] = None,
    messages: Annotated[
        Path | None,
        typer.Option(help="JSON file: a list of OpenAI-style messages, or an object with messages and tools."),
    ] = None,
    batch: Annotated[
        Path | None, typer.Option(help="JSONL of prompts to decode side by side (implies --json, one line a prompt).")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,
    max_new_tokens: Annotated[int, typer.Option(help="Stop after this many tokens.")] = 256,
    k: Annotated[
        int | None, typer.Option("--k", "-K", help="Drafts a round; by default all the drafter makes.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens of this total probability; 1 is off.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Keep tokens at least this share of the likeliest; 0 is off.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1 discourages tokens already seen.")] = 1.0,
    rule: Annotated[
        str, typer.Option(help="How sampled drafts are verified: rejection, block or match.")
    ] = "rejection",
    adaptive: Annotated[
        bool,
        typer.Option("--adaptive", help="Verify as many drafts as pay, round by round; none while drafting loses."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Makes sampling repeatable.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given more than once.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming text.")] = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
) -> None:
    """Continue a prompt, with a drafter or plainly (--drafter none): the same text, or with a temperature the same
    distribution of texts, in less time.

    Example: dlite generate --prompt "Write a haiku about rivers." --json
    """
    from dlite.api import generate as run
    from dlite.api import load_drafter, load_target
    from dlite.engine.request import Request
    from dlite.sampling import SamplingParams

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        rule=rule,  # type: ignore[arg-type]
        seed=seed,
    )
    if sum(x is not None for x in (prompt, messages, batch)) != 1:
        raise DliteError("give exactly one of --prompt, --messages and --batch. See: dlite generate --help")
    if batch is not None:
        model = load_target(target, device=device, dtype=dtype)
        like = Request((), max_new_tokens, k, sampling, tuple(stop or ()))
        _generate_batch(model, load_drafter(drafter, model), batch, raw, like, adaptive)
        return
    if raw and messages:
        raise DliteError("--raw continues text as it is; --messages are a chat. Expected one of them. Leave one out.")
    if prompt is not None and not prompt.strip():
        raise RequestError("the prompt is empty. Expected some text after --prompt.")
    body = (
        _messages(messages)
        if messages
        else {"text": prompt}
        if raw
        else {"messages": [{"role": "user", "content": prompt}]}
    )
    model = load_target(target, device=device, dtype=dtype)
    result = run(
        model,
        load_drafter(drafter, model),
        **body,
        max_new_tokens=max_new_tokens,
        K=k,
        sampling=sampling,
        stop=tuple(stop or ()),
        on_text=None if as_json else _stream,
        adaptive=adaptive,
    )
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        seconds = result.seconds
        print(
            f"\n\n[{len(result.token_ids)} tokens, {len(result.rounds)} rounds, tau {result.tau:.2f}, prefill "
            f"{seconds.prefill:.2f} s, decode {seconds.decode:.2f} s]",
            file=sys.stderr,
        )


@app.command()
def regenerate(
    prompts: Annotated[
        list[Path], typer.Argument(help="JSONL prompt files: prompt, messages (+tools), turns, agent logs and others.")
    ],
    out: Annotated[Path, typer.Option(help="Where conversations are appended; run again to go on after a stop.")],
    target: TargetOption = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option(help="Speed regeneration up with a drafter you have; greedy answers are the same.")
    ] = "none",
    server: Annotated[
        str | None, typer.Option(help="Use an OpenAI-compatible server at this URL instead of a local target.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 512,
    batch: Annotated[int, typer.Option(help="Requests in flight.")] = 64,
    limit: Annotated[int | None, typer.Option(help="Prompts to take from each file.")] = None,
    calls_per_trace: Annotated[int, typer.Option(help="Assistant turns to answer in each agent trace.")] = 4,
    max_context: Annotated[int | None, typer.Option(help="Leave out prompts longer than this many tokens.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Makes sampling and the choice of trace turns repeatable.")] = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
) -> None:
    """Have the target itself answer every prompt: the only text a drafter should be trained on.

    Token ids are kept exactly as generated. Answers cut by the limit or caught in a loop are marked. --out can
    only be continued with the settings it was begun with.

    Example: dlite regenerate prompts.jsonl --out answers.jsonl --limit 2000
    """
    from dlite.api import load_drafter, load_target
    from dlite.data.regenerate import RegenerateSettings
    from dlite.data.regenerate import regenerate as run
    from dlite.data.remote import regenerate_remote
    from dlite.sampling import SamplingParams
    from dlite.target.load import load_tokenizer

    given = {"--drafter": drafter != "none", "--device": device != "cpu", "--dtype": dtype != "float32"}
    if server is not None and (local := [name for name, is_given in given.items() if is_given]):
        raise DliteError(
            f"{' and '.join(local)} would be ignored: with --server the server decides how answers are made. Leave "
            f"{'it' if len(local) == 1 else 'them'} out, or leave --server out."
        )
    wanted = list(_read_prompts(prompts, limit, calls_per_trace, max_context, seed))
    sampling = SamplingParams(temperature=temperature, seed=seed)
    settings = RegenerateSettings(max_new_tokens, batch, max_context, sampling)
    with _bar("answers", len(wanted)) as advance:
        tokens = 0

        def seen(conversation: Any) -> None:
            nonlocal tokens
            tokens += sum(conversation.wrote)
            advance(1, f"{tokens} tokens")

        if server is None:
            model = load_target(target, device=device, dtype=dtype)
            tally = run(model, load_drafter(drafter, model), wanted, out, settings, seen)
        else:
            tally = regenerate_remote(server, target, wanted, out, settings, seen, tokenizer=load_tokenizer(target))
    _print_json(asdict(tally) | {"out": str(out)})


@app.command()
def features(
    conversations: Annotated[list[Path], typer.Argument(help="Files made by dlite regenerate.")],
    recipe: Annotated[str, typer.Option(help="Recipe name or .toml file: taps, K and anchors come from it.")],
    out: Annotated[Path, typer.Option(help="Folder of the store; run again to go on after a stop.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change the recipe: section.key=value.")] = None,
    history: Annotated[
        int | None,
        typer.Option(help="Positions kept before each pivot; by default what the recipe's drafter and stages need."),
    ] = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
) -> None:
    """Run the target over conversations once and store what the training blocks need, at anchors only.

    Prints a size estimate before it starts. Without a store, dlite train captures while it trains and stores nothing.

    Example: dlite features answers.jsonl --recipe smollm2-135m --out features/
    """
    from dlite.api import load_target
    from dlite.config import load_recipe
    from dlite.data.conversations import check_vocabulary, training_split
    from dlite.features.capture import Capturer
    from dlite.features.store import estimate, write_store
    from dlite.train.run import capture_settings

    plan = load_recipe(recipe, set_ or ())
    train, _ = training_split(conversations, keep_truncated=plan.features.truncated == "keep")
    train.sort(key=lambda c: c.ids)  # turns of one conversation side by side: a shared beginning is computed once
    model = load_target(plan.target, device=device, dtype=dtype)
    check_vocabulary(train, model.info)
    settings = capture_settings(plan, model.info, history)
    size = estimate(train, settings, model.info.hidden_size, plan.features.dtype)
    found = f"{size.conversations} conversations, {size.anchors} anchors"
    print(f"{found}: at most {size.bytes / 1e9:.2f} GB in {out}", file=sys.stderr)
    with _bar("conversations", len(train)) as advance:
        added = write_store(
            out,
            Capturer(model, settings),
            train,
            dtype=plan.features.dtype,
            progress=lambda blocks: advance(1, f"{blocks} blocks"),
        )
    _print_json({"blocks_added": added, "out": str(out)})


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Recipe name (see dlite recipes) or .toml file.")],
    data: Annotated[list[Path], typer.Option(help="Files made by dlite regenerate; may be given more than once.")],
    out: Annotated[Path, typer.Option(help="Run folder; the same command goes on after a stop.")],
    store: Annotated[
        list[Path] | None,
        typer.Option(
            help="A feature store, given more than once to mix or to weigh; without one, capture while training."
        ),
    ] = None,
    init: Annotated[
        str | None, typer.Option(help="Start from this drafter ('shipped' or a folder) instead of fresh weights.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Change the recipe: section.key=value.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or auto: the GPU that accelerate gives this process.")] = "auto",
    dtype: DtypeOption = "float32",
) -> None:
    """Train a drafter: every stage of the recipe as one run that can be stopped and started again.

    On several GPUs: accelerate launch -m dlite train ... Losses, tau on held-out prompts and TensorBoard logs lie in --out.

    Example: dlite train smollm2-135m --data answers.jsonl --store features/ --out runs/first
    """
    from dlite.train.run import train_from_files

    bar = _train_bar()
    with bar:
        folder = train_from_files(recipe, set_ or (), data, out, store or (), init, device, dtype, bar.show)
    _print_json({"drafter": str(folder)})


@app.command()
def bench(
    context: typer.Context,
    workload: Annotated[
        list[str],
        typer.Option(help="A JSONL file, NAME=FILE, or a name from dlite workloads; may be given more than once."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for report.json, report.md and report.html.")],
    target: TargetOption = "smollm2-135m",
    drafter: Annotated[
        list[str] | None,
        typer.Option(
            help="'shipped', a drafter folder, or a name from dlite drafters; with +adaptive behind it, with as many drafts "
            "as pay. May be given more than once."
        ),
    ] = None,
    k: Annotated[list[int] | None, typer.Option("--k", "-K", help="Drafts a round; several make several arms.")] = None,
    calls: Annotated[
        int | None, typer.Option(help="Calls drawn from each workload; by default what its name says, or 20.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Longest answer; by default what the workload's name says, or 128.")
    ] = None,
    min_context: Annotated[
        int | None,
        typer.Option(help="Leave out prompts shorter than this; by default what the workload's name says, or 0."),
    ] = None,
    max_context: Annotated[int | None, typer.Option(help="Leave out prompts longer than this many tokens.")] = None,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy: only then are texts compared token for token.")
    ] = 0.0,
    include_loops: Annotated[
        bool, typer.Option("--include-loops", help="Keep calls whose plain answer loops.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Which calls are drawn, bootstrap, and sampling.")] = 0,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    server: Annotated[
        str | None,
        typer.Option(help="Load an OpenAI-compatible server at this URL instead: throughput and waiting times."),
    ] = None,
    concurrency: Annotated[
        list[int] | None, typer.Option(help="Requests in flight at the server; by default 1, 2, 4, ... 64.")
    ] = None,
) -> None:
    """Measure drafters beside plain decoding on your own prompts: tau, round cost, speed-up, time per call.

    A workload that dlite workloads names keeps its published rules, also when it is read from a file of yours (NAME=FILE),
    where no option says otherwise. Arms are alternated call by call. No speed-up is shown for a drafter whose text differs
    from plain decoding's. After Ctrl-C the report holds the calls measured so far.

    With --server the same prompts are sent to a running server, so many at a time: tokens a second of all requests
    together, seconds to the first token, milliseconds a token, and what the server says of its drafts.

    Example: dlite bench --workload gsm8k.jsonl --drafter shipped -K 3 -K 7 --out out/
    """
    from dlite.commands.serve import bench_at

    if server is not None or concurrency:
        local = {"--drafter": drafter, "-K": k, "--include-loops": include_loops}
        local |= {"--device": device != "cpu", "--dtype": dtype != "float32"}
        sizes = (calls, max_new_tokens, min_context, max_context)
        bench_at(server, context, workload, out, concurrency or (), sizes, temperature, seed, local)
    from dlite.api import load_target
    from dlite.bench.command import bench_files
    from dlite.sampling import SamplingParams

    model = load_target(target, device=device, dtype=dtype)
    try:
        same = bench_files(
            model,
            workload,
            drafter or ["shipped"],
            k or [],
            out,
            calls=calls,
            max_new_tokens=max_new_tokens,
            min_context=min_context,
            max_context=max_context,
            sampling=SamplingParams(temperature=temperature, seed=seed),
            include_loops=include_loops,
            seed=seed,
            argv=sys.argv,
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if same else 1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/demo"),
    target: TargetOption = "smollm2-135m",
    drafter: DrafterOption = "shipped",
    k: Annotated[int, typer.Option("--k", "-K", help="Drafts a round; 3 pays best on most CPUs.")] = 3,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64,
) -> None:
    """Show it working: chat, code, tools and an agent's history, accepted drafts marked, then plain against DLite."""
    from dlite.api import load_drafter, load_target
    from dlite.demo import demo as run

    model = load_target(target)
    same = run(
        model, load_drafter(drafter, model), out, K=k, max_new_tokens=max_new_tokens, name=drafter, argv=sys.argv
    )
    raise typer.Exit(0 if same else 1)


@app.command()
def recipes() -> None:
    """List the recipes that ship with dlite."""
    from dlite.config import load_recipe, recipe_names

    for name in recipe_names():
        plan = load_recipe(name)
        stages = ", ".join(s.name for s in plan.stages)
        print(f"{name:16} {plan.target:18} K={plan.drafter.K}  {plan.drafter.num_layers} layers  stages: {stages}")


def _read_prompts(
    paths: list[Path], limit: int | None, calls: int, max_context: int | None, seed: int
) -> Iterator[Any]:
    from itertools import islice

    from dlite.data.prompts import read_prompts

    names = [path.name.split(".")[0] for path in paths]
    if len(set(names)) < len(names):
        raise DataError(f"two prompt files share a name among {', '.join(names)}. Ids come from names: rename one.")
    for path in paths:
        chars = None if max_context is None else 4 * max_context
        yield from islice(read_prompts(path, calls_per_trace=calls, max_chars=chars, seed=seed), limit)


def _generate_batch(target: Any, drafter: Any, path: Path, raw: bool, like: Any, adaptive: bool) -> None:
    """Answer every prompt of a file under the settings of the request ``like``."""
    from dlite.api import generate_batch
    from dlite.data.dialogue import only_ids
    from dlite.data.prompts import read_prompts

    prompts = list(read_prompts(path))
    requests = [replace(like, ids=tuple(only_ids(target.tokenizer, p, raw=raw))) for p in prompts]
    for prompt, answer in zip(prompts, generate_batch(target, drafter, requests, adaptive=adaptive), strict=True):
        print(json.dumps({"id": prompt.id, **answer.to_json()}))


def _messages(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}). Expected a list of messages.") from None
    if isinstance(data, list):
        return {"messages": data}
    if isinstance(data, dict) and isinstance(data.get("messages"), list):
        return {"messages": data["messages"], "tools": data.get("tools")}
    raise DataError(
        f"{path} holds neither a list of messages nor an object with 'messages'. See: dlite generate --help"
    )


def _stream(text: str, accepted: bool) -> None:
    print(text, end="", flush=True)


def _print_json(value: Any) -> None:
    print(json.dumps(value))


@contextmanager
def _bar(what: str, total: int) -> Iterator[Any]:
    from dlite.progress import counting_bar

    with counting_bar(what, total) as advance:
        yield advance


def _train_bar() -> Any:
    from dlite.progress import TrainBar

    return TrainBar()


app.command()(study)
app.command()(audit)
app.command()(adapt)
app.command()(drafters)
app.command()(serve)
app.command()(doctor)
app.command()(workloads)
