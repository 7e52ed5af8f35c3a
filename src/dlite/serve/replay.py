"""A script played by training code and by our decoding engine; what an engine plug-in has to offer to play it too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dlite.engine.decode import Engine
from dlite.engine.request import Request
from dlite.features.blocks import Blocks
from dlite.features.capture import Capturer, CaptureSettings
from dlite.nn.pairwise import spread
from dlite.serve.engines import ENGINES, Missing, installed
from dlite.serve.trace import Script, Trace
from dlite.serve.watch import Told, watch
from dlite.target.base import Target
from dlite.train.stages import block_input
from dlite.types import Conversation, Proposal, View

Make = Callable[[], Any]  # a fresh network, attached to the target and on its device


class Replayer(Protocol):
    """One implementation that can play a script."""

    name: str

    def missing(self) -> str | None:
        """Why it cannot be asked here, None if it can."""

    def replay(self, script: Script, target: Target, make: Make) -> Trace:
        """Play the script."""


class Training:
    """``features.capture`` and the network's teacher-forced ``forward``."""

    name = "training"

    def missing(self) -> str | None:
        """It is always there."""
        return None

    @torch.no_grad()
    def replay(self, script: Script, target: Target, make: Make) -> Trace:
        """One pass over the blocks of the script's anchors."""
        network = make().eval()
        settings = CaptureSettings(
            network.taps, script.K, len(script.ids), network.history, whole_blocks=False, max_length=len(script.ids)
        )
        wrote = tuple(at >= script.prompt for at in range(len(script.ids)))
        conversation = Conversation("golden", "golden", script.ids, wrote, finished=True, looping=False)
        capturer = Capturer(target, settings)
        whole = capturer.capture(conversation)
        if whole is None:
            raise RuntimeError("a script has anchors")
        order = capturer.anchors(conversation)
        blocks = _some(whole, [order.index(a) for a in script.anchors])
        block = block_input(blocks, script.K, network.history)
        with watch(network, torch.zeros(len(blocks), device=blocks.anchor.device)) as seen:
            output = network(block)
        logits = output.logits
        if output.candidates is not None:
            rows, scores = output.candidates
            logits = spread(rows, scores, network.vocab.size)
        best = logits.argmax(-1)
        return _trace(
            tokens=torch.stack([block.before, block.anchor], 1),
            taps=block.taps,
            logits=logits,
            drafts=best if network.vocab.ids is None else network.vocab.ids[best],
            **{name: torch.cat(parts, 1 if name == "rows" else 0) for name, parts in seen.items()},
        )


class Decoding:
    """The engine: prefill, rounds with the script's drafts, and the network's ``propose`` in each."""

    name = "decoding"

    def missing(self) -> str | None:
        """It is always there."""
        return None

    def replay(self, script: Script, target: Target, make: Make) -> Trace:
        """Round after round, until the script ends or the target leaves it."""
        player = _Player(script, make().freeze())
        engine = Engine(target, player, max_batch=1)
        engine.submit(Request(script.ids[: script.prompt], len(script.ids) + script.K, stop_ids=frozenset()))
        while engine.busy and len(player.rounds) < len(script.anchors) and player.astray is None:
            engine.step()
        if not player.rounds:
            return Trace(torch.zeros(0, 2, dtype=torch.long), astray=player.astray)
        parts = {name: torch.cat([one[name] for one in player.rounds]) for name in player.rounds[0]}
        return replace(_trace(**parts), astray=player.astray)


class NotYet:
    """A serving engine that does not play scripts: its plug-in is held against ours by tests of its own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def missing(self) -> str | None:
        """Whether it is installed, and what is missing."""
        found = installed(self.name)
        return (
            found.reason
            if isinstance(found, Missing)
            else f"{found.label} is installed, but rounds are not played through it"
        )

    def replay(self, script: Script, target: Target, make: Make) -> Trace:
        """Never asked, as something is missing."""
        raise RuntimeError(f"{self.name} cannot play a script: {self.missing()}")


def replayers() -> list[Replayer]:
    """All that could play, in the order they are asked."""
    return [Training(), Decoding(), *map(NotYet, ENGINES)]


class _Player:
    """A drafter that lets the network draft, shows it the script's tokens and proposes what the script wants accepted."""

    def __init__(self, script: Script, network: Any) -> None:
        self.script, self.network = script, network
        self.name, self.taps, self.max_drafts = network.name, network.taps, script.K
        self.rounds: list[dict[str, Tensor]] = []
        self.astray: int | None = None

    def new_memory(self, rows: int) -> Any:
        """The network's."""
        return self.network.new_memory(rows)

    def state_bytes(self, context: int) -> int:
        """The network's."""
        return int(self.network.state_bytes(context))

    def propose(self, view: View, counts: Sequence[int], chooser: Any) -> Proposal:
        """Right drafts up to the script's next anchor, then a wrong one."""
        ids, K, known = self.script.ids, self.script.K, list(view.tokens[0])
        anchor = len(known) - 1
        if tuple(known) != ids[: anchor + 1]:
            wrong = [place for place, pair in enumerate(zip(known, ids, strict=False)) if pair[0] != pair[1]]
            self.astray = wrong[0] if wrong else len(ids)
        elif anchor in self.script.anchors:
            self.rounds.append(self._listen(view, ids[anchor + 1 : anchor + 1 + K]))
        accepted = self.script.accepted(anchor)
        drafts = [] if accepted is None or self.astray is not None else list(ids[anchor + 1 : anchor + 1 + accepted])
        if accepted is not None and accepted < K and self.astray is None:
            drafts.append((ids[anchor + 1 + accepted] + 1) % self.network.config.vocab_size)
        tokens = torch.tensor([drafts], dtype=torch.long, device=view.anchor.device)
        return Proposal(tokens, torch.tensor([len(drafts)], device=view.anchor.device))

    def _listen(self, view: View, answers: Sequence[int]) -> dict[str, Tensor]:
        told = Told(torch.tensor([answers], device=view.anchor.device))
        here = len(view.tokens[0]) - 1 if view.memory is not None else 0
        with watch(self.network, torch.tensor([here], device=view.anchor.device)) as seen:
            self.network.propose(view, [self.script.K], told)
        return {
            "tokens": torch.stack([view.before, view.anchor], 1),
            "taps": view.taps,
            "logits": torch.stack(told.logits, 1),
            "drafts": torch.stack(told.best, 1),
            **{name: torch.cat(parts, 1 if name == "rows" else 0) for name, parts in seen.items()},
        }


def _some(blocks: Blocks, index: list[int]) -> Blocks:
    chosen = {name: getattr(blocks, name)[index] for name in ("pivot", "rows", "anchor", "before", "labels", "counted")}
    return replace(blocks, **chosen)


def _trace(**tensors: Tensor) -> Trace:
    """On the CPU; floating point in fp32."""
    moved = {name: x.detach().cpu() for name, x in tensors.items()}
    return Trace(**{name: x.float() if x.is_floating_point() else x for name, x in moved.items()})  # type: ignore[arg-type]
