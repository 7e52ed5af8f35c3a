"""The decoding loop: admit and prefill, then rounds of propose -> verify -> commit.

Plain decoding is the same loop with the drafter ``none``. Every request keeps its own number of accepted tokens;
nothing a request gets depends on what else is in the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor

from dlite.drafters.base import Drafter, Memory
from dlite.engine.choose import BatchChooser, first_token, verify
from dlite.engine.commit import commit, settled
from dlite.engine.control import Control, Plan
from dlite.engine.prefix import PrefixCache
from dlite.engine.request import Active, Event, Request, check
from dlite.engine.text import TextStream
from dlite.target.base import Cache, Target
from dlite.types import Generation, Proposal, Round, Seconds, View

Sink = Callable[[Event], None]


class Engine:
    """Decodes requests in a continuously refilled batch.

    ``prefix`` keeps the key-values of finished requests, so that the next turn of a conversation computes only what
    is new. ``control`` decides round by round how many drafts are worth verifying; None takes all there are. ``clock``
    gives seconds.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        max_batch: int = 8,
        prefill_chunk: int = 512,
        prefix: PrefixCache | None = None,
        control: Control | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.max_batch = max_batch
        self.prefill_chunk = prefill_chunk
        self.prefix = prefix
        self.control = control
        self.clock = clock
        self.finished: dict[int, Active] = {}
        self._waiting: deque[Active] = deque()
        self._rows: list[Active] = []
        self._cache: Cache | None = None
        self._memory = drafter.new_memory(max_batch)
        self._next_id = 0

    def submit(self, request: Request, sink: Sink | None = None) -> int:
        """Queue a request; returns its number. ``sink`` is called with each ``Event``. Errors: ``RequestError``."""
        check(request, self.target.info, self.drafter.max_drafts)
        self._waiting.append(Active(self._next_id, request, list(request.ids), sink))
        self._next_id += 1
        return self._next_id - 1

    def cancel(self, request: int) -> None:
        """Stop a request; what it has produced so far stays in its result."""
        for row in (*self._waiting, *self._rows):
            if row.id == request:
                row.cancelled = True

    def preempt(self, request: int) -> None:
        """Drop a running request's key-values and queue it again: it resumes by computing them anew."""
        for index, row in enumerate(self._rows):
            if row.id == request:
                row.pivot = None
                self._drop(index)
                self._waiting.appendleft(row)
                return

    @property
    def running(self) -> tuple[Active, ...]:
        """The requests now in the batch."""
        return tuple(self._rows)

    @property
    def busy(self) -> bool:
        """True while any request is unfinished."""
        return bool(self._waiting or self._rows)

    def result(self, request: int) -> Generation:
        """The outcome of a finished request, handed over once."""
        return self.finished.pop(request).generation()

    def run(self) -> None:
        """Work until every request is finished."""
        while self.busy:
            self.step()

    def step(self) -> None:
        """Admit what fits, then one round for the whole batch."""
        while self._waiting and len(self._rows) < self.max_batch:
            self._admit(self._waiting.popleft())
        for index in range(len(self._rows) - 1, -1, -1):
            if self._rows[index].cancelled:
                self._finish(index, "cancelled")
        if self._rows:
            self._round()

    def _admit(self, row: Active) -> None:
        if row.cancelled:
            self._close(row, "cancelled")
            return
        start = self.clock()
        fresh = row.produced == 0
        known = row.tokens if fresh else row.tokens[:-1]  # a resumed request already has its anchor
        index = len(self._rows)
        self._make_room(index, len(known) + row.room(self.target.info.context_length) + self.drafter.max_drafts + 1)
        self._rows.append(row)
        if row.stream is None:
            row.stream = TextStream(self.target.tokenizer)
        logits, row.pivot = self._prefill(index, known)
        token = first_token(logits, row) if fresh else None
        row.seconds = replace(row.seconds, prefill=row.seconds.prefill + self.clock() - start)
        if token is not None:
            self._commit(index, [token], accepted=0)

    def _prefill(self, index: int, known: list[int]) -> tuple[Tensor, Tensor]:
        cache, memory = self._cache_of(), self._memory
        if memory is not None:
            memory.clear(index)
        done = self.prefix.restore(known, cache, index, memory) if self.prefix else 0
        cache.lengths[index] = done
        output = None
        for begin in range(done, len(known), self.prefill_chunk):
            chunk = torch.tensor([known[begin : begin + self.prefill_chunk]])
            output = self.target.forward(chunk, cache, index, self.drafter.taps, "taps" if memory else "last")
            cache.lengths[index] += chunk.shape[1]
            if memory is not None:
                memory.observe(index, chunk.to(output.taps.device), output.taps, [chunk.shape[1]])
        if output is None:
            raise RuntimeError("a prefill always computes at least one position")
        return output.logits[0, -1], output.taps[0, -1].clone()

    def _round(self) -> None:
        begin = self._now()
        rows, cache = self._rows, self._cache_of()
        wanted = [self._drafts_wanted(row) for row in rows]
        plan = self.control.plan(rows, wanted, self.drafter) if self.control else Plan(wanted, [])
        chooser = BatchChooser(rows, self.target.info.vocab_size)
        proposal = (
            self.drafter.propose(_view(rows, self._memory, plan.resting), plan.counts, chooser)
            if max(plan.counts)
            else _nothing(len(rows), self.target.device)
        )
        made = proposal.tokens.shape[1]
        if self.control:
            proposal = self.control.cut(rows, proposal)
        drafted = self._now()
        anchors = torch.tensor([[row.tokens[-1]] for row in rows], device=proposal.tokens.device)
        tokens = torch.cat([anchors, proposal.tokens], 1)
        output = self.target.forward(tokens, cache, 0, self.drafter.taps, "all")
        verdict = verify(output.logits, proposal, chooser)
        accepted, following = verdict.num_accepted.tolist(), verdict.next_token.tolist()
        drafts, sizes = proposal.tokens.tolist(), proposal.num_tokens.tolist()
        verified = self._now()
        if self._memory is not None:
            self._memory.observe(0, tokens, output.taps, [kept + 1 for kept in accepted])
        observed = self._now()  # keeping the draft state up to date is part of drafting
        rounds = []
        for index in range(len(rows) - 1, -1, -1):  # backwards: a finished row is replaced by the last one
            row, kept = rows[index], accepted[index]
            cache.lengths[index] += kept + 1
            row.pivot = output.taps[index, kept].clone()  # not the whole pass
            context = len(row.tokens)
            committed = self._commit(index, [*drafts[index][:kept], following[index]], kept)
            source = proposal.source[index] if proposal.source else ""
            off = bool(plan.resting) and plan.resting[index] and not sizes[index]
            rounds.append((row, Round(sizes[index], kept, committed, context, source=source, off=off)))
        spent = Seconds(0.0, drafted - begin + observed - verified, verified - drafted, self.clock() - observed)
        _clock(rounds, spent)
        if self.control:
            self.control.learn(rounds, made, spent)

    def _drafts_wanted(self, row: Active) -> int:
        wanted = self.drafter.max_drafts if row.request.K is None else row.request.K
        return max(0, min(wanted, row.room(self.target.info.context_length) - 1))

    def _commit(self, index: int, tokens: list[int], accepted: int) -> int:
        """Tell the request and its sink of new tokens; returns how many were kept."""
        row = self._rows[index]
        event = commit(row, tokens, accepted, self.target.info)
        if event.finish:
            self._finish(index, event.finish)
        if row.sink:
            row.sink(event)
        return len(event.token_ids)

    def _finish(self, index: int, reason: str) -> None:
        row = self._rows[index]
        if self.prefix:
            self.prefix.keep(row.tokens[:-1], self._cache_of(), index, self._memory)
        self._drop(index, over=True)
        self._close(row, reason)

    def _close(self, row: Active, reason: str) -> None:
        row.finish = reason
        self.finished[row.id] = row
        if reason == "cancelled":
            row.text += row.stream.flush() if row.stream else ""
            if row.sink:
                row.sink(Event(row.id, (), 0, ((settled(row), False),), reason))

    def _drop(self, index: int, *, over: bool = False) -> None:
        cache, memory, last = self._cache_of(), self._memory, len(self._rows) - 1
        if memory is not None and over:
            row = self._rows[index]
            memory.clear(index, row.tokens, len(row.request.ids))
        if index != last:
            cache.move(last, index)
            self._rows[index] = self._rows[last]
            if memory is not None:
                memory.move(last, index)
        self._rows.pop()
        cache.lengths[last] = 0
        if memory is not None:
            memory.clear(last)

    def _make_room(self, index: int, length: int) -> None:
        if self._cache is None:
            self._cache = self.target.new_cache(self.max_batch, length)
        self._cache.reserve(length)
        self._cache.lengths[index] = 0

    def _now(self) -> float:
        """The clock, after a GPU has done what it was asked: otherwise a draft would seem to cost its launch only."""
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        return self.clock()

    def _cache_of(self) -> Cache:
        if self._cache is None:
            raise RuntimeError("no request was admitted yet")
        return self._cache


def _view(rows: list[Active], memory: Memory | None, resting: Sequence[bool]) -> View:
    pivots = [row.pivot for row in rows if row.pivot is not None]
    taps = torch.stack(pivots)
    last_two = torch.tensor([row.tokens[-2:] for row in rows], device=taps.device)
    return View(last_two[:, 1], last_two[:, 0], taps, [row.tokens for row in rows], memory, range(len(rows)), resting)


def _nothing(rows: int, device: torch.device) -> Proposal:
    return Proposal(
        torch.zeros(rows, 0, dtype=torch.long, device=device), torch.zeros(rows, dtype=torch.long, device=device)
    )


def _clock(rounds: list[tuple[Active, Round]], spent: Seconds) -> None:
    """Note the round and its times; a shared pass counts in full for every request it served."""
    for row, item in rounds:
        row.rounds.append(
            replace(item, seconds_draft=spent.draft, seconds_verify=spent.verify, seconds_other=spent.other)
        )
        had = row.seconds
        row.seconds = Seconds(had.prefill, had.draft + spent.draft, had.verify + spent.verify, had.other + spent.other)
