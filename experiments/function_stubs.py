"""Function-completion prompts for training, made of MBPP training tasks and of instructions that ask for Python.

    python experiments/function_stubs.py mbpp_train.jsonl.gz gpteacher_codegen.jsonl.gz > stubs.jsonl

Each is a signature with a docstring (the task, and some of its tests as examples) under one of four headings. MBPP rows
have ``text`` and ``test_list``, the others ``instruction``.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator

from dlite.data.jsonl import read_jsonl

HEADINGS = (
    "Write a solution to the following problem and make sure that it passes the tests:",
    "Complete the following Python function:",
    "Implement this function so that it does what its docstring says.",
    "Write a solution to the following problem:",
)
ARGUMENTS = (
    ("lst", "n", "k", "m", "a", "b"), ("s", "n", "c", "d", "e", "f"), ("a", "b", "c", "d", "e", "f"),
    ("arr", "n", "k", "x", "y", "z"), ("nums", "target", "k", "x", "y", "z"), ("text", "pattern", "k", "x", "y", "z"),
)  # fmt: skip
TEST = re.compile(r"assert\s*\(?([A-Za-z_]\w*)\((.*)\)\s*==\s*(.*)$")
ASKED = re.compile(
    r"(?:Write|Create|Design|Implement|Develop) a (?:simple |basic )?Python (?:function|program|script) (?:to|that|which) (.*)$"
)
MOST_ASKED = 160


def main() -> None:
    """Print one prompt a line."""
    mbpp, asked = sys.argv[1:3]
    dice = random.Random(0)
    for number, (name, prompt) in enumerate([*_tasks(mbpp, dice), *_asked(asked, dice)]):
        heading = HEADINGS[0] if number % 2 == 0 else HEADINGS[1 + number // 2 % 3]
        print(json.dumps({"id": name, "prompt": f"{heading}\n```python\n{prompt}\n\n```"}))


def _tasks(path: str, dice: random.Random) -> Iterator[tuple[str, str]]:
    for _, row in read_jsonl(path):
        tests = [found for test in row["test_list"] if (found := TEST.match(test))]
        if not tests:
            continue
        count = 1 + sum(_at_top(tests[0][2]))
        names = dice.choice(ARGUMENTS)[:count]
        examples = [f"    >>> {t[1]}({t[2]})\n    {t[3]}" for t in tests[: dice.choice((1, 2, 3))]]
        text = re.sub(r"^write a (python )?function (to|that|which) ", "", row["text"], flags=re.IGNORECASE)
        yield f"stub-mbpp-{row['task_id']}", _stub(tests[0][1], ", ".join(names), text, examples)


def _asked(path: str, dice: random.Random) -> Iterator[tuple[str, str]]:
    found = 0
    for number, row in read_jsonl(path):
        match = ASKED.match(row["instruction"])
        if not match or len(match[1]) < 20 or found >= MOST_ASKED:
            continue
        found += 1
        words = [
            w for w in re.findall(r"[a-z]+", match[1].lower())[:3] if w not in ("a", "the", "an", "of", "and", "to")
        ]
        arguments = dice.choice(("n", "s", "lst", "numbers", "text", "data", "a, b", "numbers, k"))
        yield f"stub-code-{number}", _stub("_".join(words) or "solve", arguments, match[1], [])


def _stub(name: str, arguments: str, text: str, examples: list[str]) -> str:
    sentence = text[0].upper() + text[1:].rstrip(".") + "."
    return "\n".join(["\n", f"def {name}({arguments}):", f'    """ {sentence}', *examples, '    """'])


def _at_top(arguments: str) -> Iterator[bool]:
    """For each character of a call's arguments, whether it is a comma between two of them."""
    depth = 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        yield character == "," and depth == 0


if __name__ == "__main__":
    main()
