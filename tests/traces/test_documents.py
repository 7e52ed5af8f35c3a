from __future__ import annotations

import pytest

from dlite.traces.documents import (
    is_locomo,
    is_longbench,
    is_qmsum,
    read_locomo,
    read_longbench,
    read_qmsum,
)  # fmt: skip
from dlite.traces.trace import UnusableError

MARKDOWN = """# Metadata

- ID: abc1
- Domain: Code

# Question

What does {this} do?
Really?

# Choices

- A: one
- B: two
  lines
- C: three
- D: four

# Answer

B
"""


def test_locomo_asks_every_question_behind_the_whole_conversation() -> None:
    sessions = {
        "session_10": [{"speaker": "B", "text": "last"}],
        "session_2": [{"speaker": "A", "text": "second", "blip_caption": "a dog"}],
        "session_1": [{"speaker": "A", "text": "first"}],
        "session_1_date_time": "May 8",
        "speaker_a": "A",
    }
    record = {
        "sample_id": "conv-1",
        "conversation": sessions,
        "qa": [{"question": "who?"}, {"answer": 1}, {"question": "when?"}],
    }
    assert is_locomo(record)
    first, second = read_locomo(record, "x")
    assert (first.id, second.id) == ("conv-1-q1", "conv-1-q2")
    text = first.messages[0]["content"]
    assert (
        text.index("DATE: May 8\nA: first")
        < text.index("A: second [shares a dog]")
        < text.index("B: last")
        < text.index("who?")
    )
    assert (first.turns, first.cut) == ((1,), 0)


def test_qmsum_asks_every_query() -> None:
    record = {
        "meeting_transcripts": [{"speaker": "P", "content": "so {braces}"}, "noise"],
        "general_query_list": [{"query": "summary?"}],
        "specific_query_list": [{"query": "detail?"}],
    }
    assert is_qmsum(record)
    texts = [trace.messages[0]["content"] for trace in read_qmsum(record, "m")]
    assert [text.rsplit("\n", 1)[1] for text in texts] == ["summary?", "detail?"]
    assert "P: so {braces}" in texts[0]


def test_longbench_rows_and_their_markdown_make_the_same_prompt() -> None:
    row = {
        "_id": "abc1", "context": " the text\n", "question": "What does {this} do?\nReally?",
        "choice_A": "one", "choice_B": "two\n  lines", "choice_C": "three", "choice_D": "four",
    }  # fmt: skip
    pair = {"markdown": MARKDOWN, "context": " the text\n"}
    assert is_longbench(row)
    assert is_longbench(pair)
    left, right = read_longbench(row, "x"), read_longbench(pair, "dir/one_context.txt")
    assert left == right
    text = left.messages[0]["content"]
    assert text.startswith(
        "Please read the following text and answer the question below.\n\n<text>\nthe text\n</text>\n\n"
    )
    assert (
        "question: What does {this} do?\nReally?\nChoices:\n(A) one\n(B) two\n  lines\n(C) three\n(D) four\n\n" in text
    )
    assert left.cut == 0


def test_dialogues_and_rows_without_their_parts_are_reasons() -> None:
    with pytest.raises(UnusableError, match="without text or without questions"):
        list(read_locomo({"conversation": {"session_1": []}, "qa": [{"question": "a"}]}, "x"))
    with pytest.raises(UnusableError, match="without text or without questions"):
        list(read_qmsum({"meeting_transcripts": [{"speaker": "a", "content": "b"}]}, "x"))
    with pytest.raises(UnusableError, match="without its four choices"):
        read_longbench({"context": "a", "question": "b", "choice_A": "c"}, "x")
    with pytest.raises(UnusableError, match="without its four choices"):
        read_longbench({"context": "a", "markdown": "no headings"}, "x")
