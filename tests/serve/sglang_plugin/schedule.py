"""A scheduler that prepares batches and carries results to the next round as SGLang's does, with overlap or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Mode = IntEnum("Mode", ["EXTEND", "DECODE"])


@dataclass
class Scheduler:
    """Prompts in, rounds, answers out; the parts of SGLang's that the worker leans on."""

    worker: Any
    overlap: bool
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = self.worker.target_worker
        self.answers: dict[int, list[int]] = {}
        self.rounds: list[int] = []
        self.newest = torch.zeros(self.target.slots, dtype=torch.long)  # SGLang's buffer between overlapped steps

    def prompts(self, prompts: dict[int, Sequence[int]], known: int = 0, **options: Any) -> Any:
        """Read prompts into slots, all but the first ``known`` tokens; the batch that goes on with them."""
        for slot, ids in prompts.items():
            self.target.texts[slot], self.answers[slot] = list(ids), []
        rest = [list(ids)[known:] for ids in prompts.values()]
        batch = self._batch(list(prompts), Mode.EXTEND, **options)
        batch.input_ids, batch.extend_lens = torch.tensor([t for ids in rest for t in ids]), [len(ids) for ids in rest]
        result = self._run(batch)
        for slot, token in zip(prompts, result.next_token_ids.tolist(), strict=True):
            self._commit(slot, [token])
        return batch

    def round(self, batch: Any) -> Any:
        """One verification; what it accepted is committed."""
        batch.forward_mode = _mode(Mode.DECODE)
        result = self._run(batch)
        tokens, slots = (
            result.next_token_ids.view(len(result.accept_lens), -1).tolist(),
            batch.req_pool_indices.tolist(),
        )
        for slot, row, count in zip(slots, tokens, result.accept_lens.tolist(), strict=True):
            self._commit(slot, row[:count])
            self.rounds.append(count)
        return result

    def _run(self, batch: Any) -> Any:
        slots, info = batch.req_pool_indices, batch.spec_info
        options: dict[str, Any] = {}
        if self.overlap:
            if info is not None:
                info.bonus_tokens = self.newest[info.future_indices]
            options["on_publish"] = lambda lengths: self.events.append(f"lengths {lengths.tolist()}")
        result = self.worker.forward_batch_generation(batch, **options)
        assert result.logits_output.hidden_states is None
        batch.spec_info = result.next_draft_input
        if self.overlap:
            self.newest[slots] = batch.spec_info.bonus_tokens.long()
            batch.spec_info.future_indices = slots
        batch.seq_lens = result.new_seq_lens
        batch.seq_lens_cpu, batch.seq_lens_sum = batch.seq_lens.clone(), int(batch.seq_lens.sum())
        return result

    def keep(self, batch: Any, rows: Sequence[int]) -> None:
        """Only some requests go on."""
        index = torch.tensor(rows)
        batch.spec_info.filter_batch(index)
        batch.reqs = [batch.reqs[row] for row in rows]
        batch.req_pool_indices = batch.req_pool_indices[index]
        self._lengths(batch, batch.seq_lens[index])

    def join(self, batch: Any, other: Any) -> None:
        """Another batch's requests go on with these."""
        batch.spec_info.merge_batch(other.spec_info)
        batch.reqs = batch.reqs + other.reqs
        batch.req_pool_indices = torch.cat([batch.req_pool_indices, other.req_pool_indices])
        self._lengths(batch, torch.cat([batch.seq_lens, other.seq_lens]))

    def _batch(
        self, slots: list[int], mode: Mode, sampling: Sequence[Any] = (), info: Any = None, **options: Any
    ) -> Any:
        greedy = SimpleNamespace(top_k=1)
        batch = SimpleNamespace(
            reqs=[SimpleNamespace(sampling_params=one) for one in sampling or [greedy] * len(slots)],
            sampling_info=info or SimpleNamespace(logit_bias=None), req_pool_indices=torch.tensor(slots), spec_info=None,
            is_extend_in_batch=False, has_grammar=False, return_logprob=False, forward_mode=_mode(mode),
        )  # fmt: skip
        for name, value in options.items():
            setattr(batch, name, value)
        self._lengths(batch, torch.tensor([len(self.target.texts[slot]) for slot in slots]))
        return batch

    def _lengths(self, batch: Any, lengths: Tensor) -> None:
        batch.seq_lens, batch.seq_lens_cpu, batch.seq_lens_sum = lengths, lengths.clone(), int(lengths.sum())

    def _commit(self, slot: int, tokens: Sequence[int]) -> None:
        self.target.texts[slot] += tokens
        self.answers[slot] += tokens


def _mode(mode: Mode) -> Any:
    return SimpleNamespace(is_extend=lambda: mode is Mode.EXTEND)
