"""Any small causal language model over the target's tokens as a drafter (2211.17192, 2302.01318). Nothing is trained.

It is a target to us: it has its own cache over the same tokens, run ahead by the drafts of a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dlite.drafters.base import About, Chooser
from dlite.errors import DliteError
from dlite.nn.past import past_bytes
from dlite.target.base import Target, TargetInfo
from dlite.target.load import load_target
from dlite.types import Proposal, View


class DraftModel:
    """Drafts K tokens with ``model``, one pass each. Beyond the model's own context its drafts get worse, never wrong."""

    name = "draft_model"
    taps: tuple[int, ...] = ()
    about = About(context="text", head="a causal model's own", paper="arXiv 2211.17192", state="its keys and values")

    def __init__(self, model: Target, info: TargetInfo, K: int = 7) -> None:
        """``info`` is the target's. Errors: ``DliteError`` for another vocabulary."""
        check_vocabulary(model.info, info)
        self.model, self.max_drafts = model, K
        # The same tokenizer may come with output matrices padded to other sizes: only the shared rows are drafted.
        self.words = min(model.info.vocab_size, info.vocab_size)
        self.ids = None if self.words == info.vocab_size else torch.arange(self.words, device=model.device)

    @staticmethod
    def for_target(target: Target, argument: str = "") -> DraftModel:
        """The model named by ``argument``, where the target is and in its dtype. Errors: ``DliteError``."""
        if not argument:
            raise DliteError(
                "draft_model does not say which model. Expected draft_model:NAME with a hub id, a folder, a .gguf file or a "
                "built-in name. For example: --drafter draft_model:smollm2-135m"
            )
        dtype = str(target.dtype).removeprefix("torch.")
        return DraftModel(load_target(argument, device=str(target.device), dtype=dtype), target.info)

    def new_memory(self, rows: int) -> ModelMemory:
        """The model's own keys and values."""
        return ModelMemory(self.model, rows)

    @torch.inference_mode()
    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """``max(counts)`` passes of one token a row, each over the draft before it."""
        memory: ModelMemory = view.memory
        memory.begin()
        previous, drafts = view.anchor, []
        for slot in range(max(counts)):
            logits = memory.step(view.rows, previous)[:, : self.words]
            previous = chooser.choose(slot, logits, self.ids)
            drafts.append(previous)
        memory.cut()
        return Proposal(torch.stack(drafts, 1), torch.tensor(counts, device=view.anchor.device))

    def state_bytes(self, context: int) -> int:
        """The model's keys and values behind ``context`` tokens, of which the last one is the anchor."""
        return model_bytes(self.model, context)


class ModelMemory:
    """The model's cache, row by row beside the target's.

    After a round it still holds what the drafts wrote behind its length: ``ahead`` says which tokens. As far as they
    were accepted they need not be computed again.
    """

    overlap = 0

    def __init__(self, model: Target, rows: int) -> None:
        self.model = model
        self.cache: Any = model.new_cache(rows, 64)
        self.ahead: list[list[int]] = [[] for _ in range(rows)]
        self._settled = [0] * rows

    def begin(self) -> None:
        """Before the steps of a round."""
        self._settled, self.ahead = list(self.cache.lengths), [[] for _ in self.ahead]

    def cut(self) -> None:
        """After them: no draft counts yet, though all stay in the cache."""
        self.cache.lengths[:] = self._settled

    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        """One token behind each of these rows: tokens [B] -> the logits of the next [B,V]. Lengths grow by one."""
        first, end = min(rows), max(rows) + 1
        # A pass covers neighbouring rows: those between the wanted ones get a token of no account.
        new = tokens.new_zeros(end - first, 1)
        places = [row - first for row in rows]
        new[places, 0] = tokens
        logits = self._run(new, first)[places]
        for row, token in zip(range(first, end), new[:, 0].tolist(), strict=True):
            self.ahead[row].append(token)
            self.cache.lengths[row] += 1
        return logits

    def observe(self, first: int, tokens: Tensor, taps: Tensor, kept: Sequence[int]) -> None:
        """Keep the first ``kept[b]`` of tokens [B,R]; of these only what the drafts have not left in the cache is run."""
        rows = range(first, first + len(kept))
        new = [row[:count] for row, count in zip(tokens.tolist(), kept, strict=True)]
        held = [_shared(self.ahead[row], own) for row, own in zip(rows, new, strict=True)]
        lacking = [count for count, own in zip(held, new, strict=True) if count < len(own)]
        done = min(lacking, default=0)
        for row in rows:
            self.cache.lengths[row] += done
        if lacking:
            self._run(tokens[:, done : max(kept)], first)
        for row, own in zip(rows, new, strict=True):
            self.cache.lengths[row] += len(own) - done
            self.ahead[row] = []

    def clear(self, row: int, tokens: Sequence[int] = (), prompt: int = 0) -> None:
        """Empty a row."""
        self.cache.lengths[row], self.ahead[row] = 0, []

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        self.cache.move(source, row)
        self.ahead[row] = []

    def export(self, row: int, length: int) -> Any:
        """Keys and values of the first ``length`` positions."""
        return self.cache.export(row, length)

    def restore(self, row: int, saved: Any, length: int) -> None:
        """What ``export`` gave, cut to ``length``."""
        self.cache.restore(row, saved, length)
        self.ahead[row] = []

    def bytes(self, row: int) -> int:
        """Bytes kept for the request in a row."""
        return model_bytes(self.model, self.cache.lengths[row] + 1)

    def _run(self, tokens: Tensor, first: int) -> Tensor:
        """tokens [B,R] -> logits of the token after the last [B,V]. A padding row that the model lacks is its last one."""
        known = tokens.clamp(max=self.model.info.vocab_size - 1)
        return self.model.forward(known, self.cache, first, (), "last").logits[:, -1]


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def model_bytes(model: Target, context: int) -> int:
    """Bytes of keys and values behind ``context`` tokens, the last of which was not run yet."""
    return past_bytes(model.info.layer, context) * model.dtype.itemsize // 4  # past_bytes counts fp32


def check_vocabulary(draft: TargetInfo, target: TargetInfo) -> None:
    """Refuse a model whose token ids mean something else. Errors: ``DliteError``."""
    if draft.tokenizer_hash != target.tokenizer_hash:
        raise DliteError(
            f"{draft.name} has another tokenizer than {target.name}. Expected the same tokens under the same ids. Draft with "
            f"a smaller model of the family of {target.name}."
        )
    if not target.tokenizer_hash and draft.vocab_size != target.vocab_size:
        raise DliteError(
            f"{draft.name} has a vocabulary of {draft.vocab_size}; {target.name} has {target.vocab_size} and no tokenizer to "
            "compare. Expected the same. Draft with a smaller model of its family."
        )
