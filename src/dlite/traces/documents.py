"""Questions behind long texts: LoCoMo, QMSum and LongBench v2. Where the text does not fit, it loses its middle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dlite.traces.trace import Trace, UnusableError, make_trace

LOCOMO = "Below is a conversation between two people, over several days.\n\n{text}\n\n{question}\nAnswer with a short phrase."
QMSUM = "Below is the transcript of a meeting.\n\n{text}\n\n{question}"
LONGBENCH = (  # worded as the benchmark does
    "Please read the following text and answer the question below.\n\n<text>\n{text}\n</text>\n\n"
    "What is the correct answer to this question: {question}\nChoices:\n{choices}\n\n"
    'Format your response as follows: "The correct answer is (insert answer here)".'
)
LETTERS = "ABCD"


def is_locomo(record: Mapping[str, Any]) -> bool:
    """Sessions of a conversation and questions about them."""
    return isinstance(record.get("conversation"), Mapping) and isinstance(record.get("qa"), list)


def read_locomo(record: Mapping[str, Any], name: str) -> Iterator[Trace]:
    """One trace a question, the whole conversation before it."""
    conversation = record["conversation"]
    sessions = sorted((k for k, v in conversation.items() if isinstance(v, list)), key=_number)
    text = "\n\n".join(_session(conversation, session) for session in sessions)
    questions = [q.get("question") for q in record["qa"] if isinstance(q, Mapping)]
    yield from _asked(record.get("sample_id") or name, "LoCoMo", LOCOMO, text, questions)


def is_qmsum(record: Mapping[str, Any]) -> bool:
    """A meeting and queries about it."""
    return isinstance(record.get("meeting_transcripts"), list)


def read_qmsum(record: Mapping[str, Any], name: str) -> Iterator[Trace]:
    """One trace a query, the whole meeting before it."""
    said = record["meeting_transcripts"]
    text = "\n".join(f"{t.get('speaker')}: {t.get('content')}" for t in said if isinstance(t, Mapping))
    lists = [record.get("general_query_list"), record.get("specific_query_list")]
    queries = [q.get("query") for some in lists if isinstance(some, list) for q in some if isinstance(q, Mapping)]
    yield from _asked(name, "QMSum", QMSUM, text, queries)


def is_longbench(record: Mapping[str, Any]) -> bool:
    """A row of LongBench v2, or its question in Markdown beside its context."""
    return isinstance(record.get("context"), str) and ("choice_A" in record or "markdown" in record)


def read_longbench(record: Mapping[str, Any], name: str) -> Trace:
    """One turn: the benchmark's own prompt."""
    row = {**_from_markdown(record["markdown"]), **record} if "markdown" in record else record
    texts = [row.get(key) for key in ("question", *(f"choice_{letter}" for letter in LETTERS))]
    parts = [text for text in texts if isinstance(text, str) and text]
    if len(parts) < len(texts):
        raise UnusableError("a question without its four choices")
    choices = "\n".join(f"({letter}) {text}" for letter, text in zip(LETTERS, parts[1:], strict=True))
    content = _filled(LONGBENCH, text=row["context"].strip(), question=parts[0], choices=choices)
    identity = str(row.get("_id") or name.removesuffix("_context.txt"))
    return make_trace(identity, "LongBench v2", [{"role": "user", "content": content}], cut=0)


def _asked(name: Any, layout: str, form: str, text: str, questions: list[Any]) -> Iterator[Trace]:
    usable = [q for q in questions if isinstance(q, str) and q.strip()]
    if not text.strip() or not usable:
        raise UnusableError("a dialogue without text or without questions")
    for number, question in enumerate(usable, 1):
        message = {"role": "user", "content": _filled(form, text=text, question=question)}
        yield make_trace(f"{name}-q{number}", layout, [message], cut=0)


def _filled(form: str, **parts: str) -> str:
    """The form with its parts; braces in them stay what they are."""
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], form)


def _number(session: str) -> int:
    digits = re.findall(r"\d+", session)
    return int(digits[0][:9]) if digits else 0


def _session(conversation: Mapping[str, Any], session: str) -> str:
    date = conversation.get(f"{session}_date_time")
    lines = [f"DATE: {date}"] if isinstance(date, str) else []
    for turn in conversation[session]:
        if isinstance(turn, Mapping):
            picture = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
            lines.append(f"{turn.get('speaker')}: {turn.get('text')}{picture}")
    return "\n".join(lines)


def _from_markdown(text: str) -> dict[str, str]:
    """Question, choices and id from headings and list items."""
    sections = dict(re.findall(r"^# (\w+)\n(.*?)(?=^# |\Z)", text, re.MULTILINE | re.DOTALL))
    choices = re.findall(r"^- ([A-D]): (.*?)(?=^- [A-D]: |\Z)", sections.get("Choices", ""), re.MULTILINE | re.DOTALL)
    row = {f"choice_{letter}": choice.strip() for letter, choice in choices}
    row["question"] = sections.get("Question", "").strip()
    if identity := re.search(r"^- ID: (\S+)", sections.get("Metadata", ""), re.MULTILINE):
        row["_id"] = identity[1]
    return row
