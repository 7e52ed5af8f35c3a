"""A small target that talks, a drafter that guesses it, logs to replay, and one replay of them that many tests share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dlite.audit.costs import Cost
from dlite.audit.replay import Replay, ReplaySettings, replay
from dlite.audit.turns import Choice, Turn, choose_turns
from dlite.bench.run import PLAIN, Arm
from dlite.drafters.base import Chooser
from dlite.drafters.none import NoDrafter
from dlite.target.base import Rows, TargetOutput
from dlite.target.toy import ToyCache, ToyTarget
from dlite.traces.render import Renderer
from dlite.traces.skipped import Skipped
from dlite.traces.trace import Trace, make_trace
from dlite.types import Generation, Proposal, Round, Seconds, View
from tests.data.support import TOOLS, make_tokenizer


class LyingTarget(ToyTarget):
    """Passes over several rows favour one token: what a faulty kernel does to verification."""

    off = 0.0

    def forward(self, tokens: Tensor, cache: ToyCache, first: int, taps: tuple[int, ...], rows: Rows) -> TargetOutput:
        """As the toy, but off where several rows are verified."""
        output = super().forward(tokens, cache, first, taps, rows)
        if rows == "all" and tokens.shape[1] > 1:
            output.logits[..., 7] += self.off
        return output


class Guesser:
    """Proposes what the toy target would say, wrong at places that the length of the text alone decides."""

    taps: tuple[int, ...] = ()

    def __init__(self, target: ToyTarget, *, name: str = "guesser", right: float = 0.7, K: int = 4) -> None:
        self.name, self.max_drafts, self.target = name, K, target
        dice = random.Random(0)
        self.right = [dice.random() < right for _ in range(4096)]

    def new_memory(self, rows: int) -> None:
        """It forgets."""

    def propose(self, view: View, counts: Sequence[int], chooser: Chooser) -> Proposal:
        """The target's best token at each place, or the one after it."""
        rows = []
        for tokens in view.tokens:
            text = list(tokens)
            for _ in range(max(counts)):
                states = self.target._states(torch.tensor([text[-2]]), torch.tensor([text[-1]]))
                best = int(self.target.last_tap_logits(states[0, -1]).argmax())
                text.append(best if self.right[len(text)] else (best + 1) % self.target.info.vocab_size)
            rows.append(text[len(tokens) :])
        return Proposal(torch.tensor(rows), torch.tensor(counts))

    def state_bytes(self, context: int) -> int:
        """As if it kept a little for each token."""
        return 10 * context


def talker(kind: type[ToyTarget] = ToyTarget, *, template: str | None = TOOLS, context: int = 3000) -> Any:
    """A toy target that reads and writes single characters."""
    tokenizer = make_tokenizer(template)
    target = kind(len(tokenizer), sharpness=4.0, seed=3, context_length=context)
    target.tokenizer, target.info = tokenizer, replace(target.info, stop_ids=frozenset({0}))
    return target


def agent_trace(name: str, steps: int, length: int = 60) -> Trace:
    """A conversation of ``steps`` answers, shell commands and results in turn."""
    dice = random.Random(name)
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be"}, {"role": "user", "content": f"fix {name}"}]
    for step in range(steps):
        command = ("ls", "grep")[step % 2]
        messages.append({"role": "assistant", "content": f"so\n```bash\n{command} {step}\n```"})
        messages.append({"role": "user", "content": "".join(dice.choice("abcde ") for _ in range(length))})
    return make_trace(name, "mini-swe-agent", messages[:-1])


def make_turns(target: Any, traces: Sequence[Trace], max_calls: int = 9, per_trace: int = 3) -> list[Turn]:
    """Turns of the traces, all that fit."""
    choice = Choice(max_calls, per_trace, 0, target.info.context_length - 64)
    return choose_turns(traces, Renderer(target.tokenizer), choice, Skipped())


def make_replay(target: Any, *, settings: ReplaySettings | None = None, steps: int = 12) -> Replay:
    """Three conversations replayed plainly, with a good and with a poor guesser."""
    turns = make_turns(target, [agent_trace(name, steps, 90) for name in ("one", "two", "three")])
    arms = [
        Arm(PLAIN, NoDrafter()),
        Arm("good", Guesser(target, right=0.8)),
        Arm("poor K=2", Guesser(target, right=0.2), 2),
    ]
    return replay(target, arms, turns, settings or ReplaySettings(max_new_tokens=24))


def costs_of(done: Replay, *, plain: float = 1.0, per_row: float = 0.1, draft: float = 0.0) -> list[Cost]:
    """Made-up costs at two prompt lengths: a round that verifies K drafts costs ``plain`` + K ``per_row`` seconds."""
    lengths = sorted({len(turn.ids) for turn in done.turns})
    found = []
    for context in (lengths[0], lengths[-1]):
        found += [Cost(PLAIN, K, context, plain + K * per_row) for K in (0, 1, 2, 4)]  # 3 lies between
        found += [
            Cost(arm.name, K, context, draft)
            for arm in done.arms[1:]
            for K in range(1, (arm.K or arm.drafter.max_drafts) + 1)
        ]
    return found


def generation(ids: Sequence[int], rounds: Sequence[tuple[int, int, int]], **more: Any) -> Generation:
    """A made-up outcome; rounds are (proposed, accepted, committed)."""
    made = tuple(Round(*one, context=10) for one in rounds)
    facts: dict[str, Any] = {"text": "", "finish": "length", "seconds": Seconds(), "prompt_tokens": 3, **more}
    return Generation(token_ids=tuple(ids), rounds=made, **facts)
