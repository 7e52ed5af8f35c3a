"""Public workloads by name: where each comes from, and the rules it is published with. The one place that says so.

General and agent counts and filters are those of DLite (arXiv 2610.23787, Tables 1 to 3) where it prints them, else the
benchmark's own; ``rule`` says which are ours. Rows become layouts that ``data/rows.py`` or ``traces/`` reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Record = Mapping[str, Any]
Shape = Callable[[Record, str], Record | None]  # (row, place) -> a row of a known layout, None for another subtask's
LONG = 32_768  # prompt tokens: the agent calls that DLite measures have more
GENERAL = 2048  # new tokens: what DFlash's scripts decode (2602.06036); DLite does not print its own


@dataclass(frozen=True)
class Hub:
    """A data set as the ``datasets`` package finds it; or ``files`` of JSON (lines), each read as text.

    Of a large one only the ``first`` rows are looked at.
    """

    path: str
    split: str = "train"
    config: str | None = None
    files: tuple[str, ...] = ()
    first: int | None = None


@dataclass(frozen=True)
class Workload:
    """``source`` is a data set, or a BFCL set of the ``bfcl-eval`` package.

    ``replayed``: rows are conversations whose turns are replayed, read by ``traces/``; else prompts. ``count`` calls (or
    whole sessions) are drawn, None for all. Prompts have more than ``min_context`` tokens.
    """

    name: str
    source: Hub | str
    shape: Shape
    rule: str
    count: int | None
    max_new_tokens: int = GENERAL
    min_context: int = 0
    unit: Literal["calls", "sessions"] = "calls"
    replayed: bool = False


def form(template: str) -> Shape:
    """Rows as one user turn: the template with the row's own keys."""
    return lambda row, place: {"turns": [template.format_map(row)]}


def as_it_is(row: Record, place: str) -> Record | None:
    """Rows that are a known layout already."""
    return row


def two_turns(row: Record, place: str) -> Record | None:
    """MT-Bench: two user turns."""
    return {"turns": list(row["prompt"])}


def competition(row: Record, place: str) -> Record | None:
    """LiveCodeBench, worded as DeepSeek-R1's evaluation does: with starter code, or reading standard input."""
    code = row.get("starter_code") or ""
    how = "Use the following code structure" if code else "Write your code in the following format"
    text = (
        "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
        "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
        f"for the program\n\n### Question:\n{row['question_content']}\n\n### Format: {how}:\n```python\n"
        f"{code or '# YOUR CODE HERE'}\n```\n\n### Answer: (use the provided format with backticks)"
    )
    return {"turns": [text]}


def domain(name: str) -> Shape:
    """LongBench v2: rows of one domain, told by the row or by the folder it lies in; a row that does not say is taken."""
    slug = name.lower().replace(" ", "_")

    def shape(row: Record, place: str) -> Record | None:
        said = str(row.get("domain") or (place.split("/")[-2] if "/" in place else name))
        return row if said.lower().replace(" ", "_") == slug else None

    return shape


def trajectory(row: Record, place: str) -> Record | None:
    """SWE-agent runs as the hub has them (role, text, system_prompt); other agents' logs as they are."""
    steps = row.get("trajectory")
    if not isinstance(steps, list) or not all(isinstance(s, Mapping) and "role" in s for s in steps):
        return row
    roles = {"ai": "assistant"}
    messages = [
        {"role": roles.get(s["role"], s["role"]), "content": s.get("text") or s.get("system_prompt")} for s in steps
    ]
    return {"instance_id": row.get("instance_id"), "messages": messages}


def asked_last(row: Record, place: str) -> Record | None:
    """AgentLongBench: the history, then the question; only that is answered."""
    messages = row.get("messages")
    messages = json.loads(messages) if isinstance(messages, str) else messages
    if not isinstance(messages, list) or not row.get("question"):
        return row
    whole = [*messages, {"role": "user", "content": str(row["question"])}]
    return {"id": row.get("id"), "request": {"messages": whole}}


MATH = "\nPlease reason step by step, and put your final answer within \\boxed{{}}."
CODE = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```"
RAW = "https://raw.githubusercontent.com"
LIVE = Hub(
    "livecodebench/code_generation_lite",
    files=tuple(
        f"hf://datasets/livecodebench/code_generation_lite/test{n}.jsonl" for n in ("", "2", "3", "4", "5", "6")
    ),
)
ALPACA = Hub("SafeAILab/EAGLE", files=(f"{RAW}/SafeAILab/EAGLE/main/eagle/data/alpaca/question.jsonl",))
LOCOMO = Hub("snap-research/locomo", files=(f"{RAW}/snap-research/locomo/main/data/locomo10.json",))
ROLLOUTS = Hub(
    "ign1s/AgentLongBench",
    files=tuple(f"hf://datasets/ign1s/AgentLongBench/benchmark/*/{n}[kK]/*/*.jsonl" for n in (64, 128)),
)
SWE = Hub("nebius/SWE-agent-trajectories", first=2000)
LONGBENCH = Hub("THUDM/LongBench-v2")
OURS = "New tokens are ours."


def _long(name: str, topic: str, count: int) -> Workload:
    rule = (
        f"LongBench v2 (2412.15204), {topic}: all {count} questions, the middle of the text cut so that it fits the "
        "target's context, 128 new tokens, all as the benchmark does."
    )
    return Workload(f"longbench-v2-{name}", LONGBENCH, domain(topic), rule, None, 128, replayed=True)


WORKLOADS = (
    Workload(
        "gsm8k", Hub("openai/gsm8k", "test", "main"), form("{question}" + MATH),
        "The whole test split, 1,319 questions (2110.14168), answered step by step.", 1319,
    ),
    Workload(
        "math500", Hub("HuggingFaceH4/MATH-500", "test"), form("{problem}" + MATH),
        "All 500 problems (2305.20050), answered step by step.", 500,
    ),
    Workload(
        "humaneval", Hub("openai/openai_humaneval", "test"), form(CODE), "All 164 problems (2107.03374).", 164,
    ),
    Workload(
        "mbpp", Hub("google-research-datasets/mbpp", "test", "sanitized"), form("{prompt}"),
        "The sanitized test split, 257 problems (2108.07732).", 257,
    ),
    Workload(
        "livecodebench", LIVE, competition, "Release 6, all 1,055 problems (2403.07974).", 1055,
    ),
    Workload(
        "mt-bench", Hub("HuggingFaceH4/mt_bench_prompts"), two_turns,
        "All 80 conversations of two turns (2306.05685), each behind the target's own first answer.", 160,
    ),
    Workload("alpaca", ALPACA, as_it_is, "The 80 instructions that EAGLE measures (2401.15077).", 80),
    _long("multi-doc-qa", "Multi-Document QA", 125),
    _long("long-icl", "Long In-context Learning", 81),
    _long("code-repo", "Code Repository Understanding", 50),
    _long("dialogue", "Long-dialogue History Understanding", 39),
    Workload(
        "swe-bench", SWE, trajectory,
        "Agent replay: 50 prompts of more than 32K tokens (DLite, Table 3), the history as logged, tool time not counted. "
        f"Whose runs it replays is not published: ours are SWE-agent's. {OURS}",
        50, 512, LONG, replayed=True,
    ),
    Workload(
        "agentmembench", LOCOMO, as_it_is,
        "180 questions behind more than 32K tokens (DLite, Table 3), here about LoCoMo's dialogues (2402.17753), whole. Longer "
        f"ones than the context lose their middle. {OURS}",
        180, 128, LONG, replayed=True,
    ),
    Workload(
        "agentlongbench", ROLLOUTS, asked_last,
        "50 prompts of more than 32K tokens (DLite, Table 3), of the 64K and 128K rollouts (2601.20730); the question behind "
        f"the history is answered. {OURS}",
        50, 512, LONG, replayed=True,
    ),
    Workload(
        "bfcl-v3", "bfcl:multi_turn_long_context", as_it_is,
        "41 sessions, of each the calls behind more than 32K tokens (DLite, Table 3); results of the answer key's calls are "
        f"the simulators'. {OURS}",
        41, 512, LONG, "sessions", replayed=True,
    ),
)  # fmt: skip
TABLE = {one.name: one for one in WORKLOADS}
GROUPS = {"longbench-v2": tuple(name for name in TABLE if name.startswith("longbench-v2-"))}
