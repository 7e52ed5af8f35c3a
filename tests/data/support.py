"""A tokenizer of single characters with a chat template, and a toy target that speaks through it."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dlite.target.toy import ToyTarget
from tests.support import tiny_model

START, END = "<|start|>", "<|end|>"
PLAIN = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TOOLS = (
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[CALL {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

BARE = (  # a question's last letters stand before the answer, so that a second-order chain answers each differently
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}<|end|>{% else %}<|start|>{{ m.content }}"
    "{% endif %}{% endfor %}"
)


def make_tokenizer(template: str | None, letters: str = string.printable + "é\u2028") -> PreTrainedTokenizerFast:
    """One id a letter, behind <|end|> (0), <|start|> (1) and one for unknown letters (2)."""
    vocab = {word: i for i, word in enumerate([END, START, "\ufffd", *letters])}
    core = Tokenizer(models.WordLevel(vocab, unk_token="\ufffd"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([END, START])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, chat_template=template)


def target_folder(folder: Path, template: str | None = TOOLS, *, context: int = 300) -> Path:
    """Writes a random model with this tokenizer; returns the folder."""
    tokenizer = make_tokenizer(template)
    model = tiny_model("qwen3", vocab_size=len(tokenizer), context=context, eos_token_id=0, bos_token_id=None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chatty_target(template: str | None = BARE, letters: str = "usera itn\n", **options: Any) -> ToyTarget:
    """A toy target over few letters, so that some greedy answers stop, some run on and some loop."""
    tokenizer = make_tokenizer(template, letters)
    target = ToyTarget(len(tokenizer), **options)
    target.tokenizer, target.info = tokenizer, replace(target.info, stop_ids=frozenset({0}))
    return target
