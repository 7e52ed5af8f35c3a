"""A few answers to look at: two typical ones, then some from short to long prompts, token by token with every arm."""

from __future__ import annotations

from typing import Any

from dlite.audit.figures import TrialMarks
from dlite.audit.replay import Replay
from dlite.audit.turns import Turn
from dlite.types import Round, tau

TYPICAL, OTHERS = 2, 4


def samples(replay: Replay, marks: TrialMarks, *, include_loops: bool) -> list[dict[str, Any]]:
    """For each answer its turn, the arm that commits the most tokens a round (``shown``), and of every arm that gives
    the target's own text the tokens as [text, draft position, source].
    """
    arms = [arm.name for arm in replay.arms[1:] if replay.lossless(arm.name)]
    turns = [turn for turn in replay.turns if include_loops or turn.id not in replay.looping]
    if not arms or not turns:
        return []
    main = {(t.turn, t.arm): t.generation.rounds for t in replay.trials if t.reuse == replay.settings.main}
    whole = {arm: tau(r for turn in turns for r in main[turn.id, arm]) for arm in arms}
    shown = max(arms, key=lambda arm: whole[arm])
    order = sorted(turns, key=lambda turn: _oddness(main[turn.id, shown], whole[shown]))
    typical, others = order[:TYPICAL], _spread(order[TYPICAL:])
    return [
        {
            "turn": turn.id,
            "context": len(turn.ids),
            "typical": turn in typical,
            "shown": shown,
            "answers": [
                {"arm": arm, "tokens": [[m.text, m.position, m.source] for m in marks[turn.id, arm]]} for arm in arms
            ],
        }
        for turn in (*typical, *others)
    ]


def _oddness(rounds: tuple[Round, ...], whole: float) -> tuple[bool, float]:
    """How far an answer's tau is from that of all; answers without rounds come last."""
    return not rounds, abs(tau(rounds) - whole)


def _spread(turns: list[Turn]) -> list[Turn]:
    """A few of the turns, from the shortest prompt to the longest."""
    by_length = sorted(turns, key=lambda turn: len(turn.ids))
    count = min(OTHERS, len(by_length))
    return [by_length[round(i * (len(by_length) - 1) / max(1, count - 1))] for i in range(count)]
