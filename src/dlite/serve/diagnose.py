"""From the first tensor that differs to the name of the fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dlite.serve.golden import PLACES, Golden
from dlite.serve.trace import Difference, Trace, differs, first_difference
from dlite.target.base import Target


@dataclass(frozen=True)
class Finding:
    """A fault by name, the tensor that shows it first, and a sentence with the place."""

    fault: str
    tensor: str
    text: str


@dataclass(frozen=True)
class Case:
    """What a diagnosis looks at: ``block`` is the first round that differs."""

    difference: Difference
    golden: Golden
    target: Target
    tolerance: float

    @property
    def block(self) -> int:
        """The first round that differs."""
        return int(self.difference.at.nonzero()[0, 0])

    @property
    def where(self) -> str:
        """That round in words."""
        return f"round {self.block}, anchor at position {self.golden.script.anchors[self.block]}"

    def same(self, found: Tensor, expected: Tensor) -> bool:
        """Equal within the tolerance, all of it."""
        return not differs(found, expected, self.tolerance).any()


def diagnose(found: Trace, golden: Golden, target: Target, tolerance: float) -> Finding | None:
    """What is wrong with a trace, None if nothing is."""
    difference = first_difference(found, golden.trace, tolerance)
    if difference is not None:
        if difference.found.shape != difference.expected.shape:
            shapes = f"{list(difference.found.shape)}, expected {list(difference.expected.shape)}"
            return Finding("shape", difference.name, f"{difference.name} has shape {shapes}")
        case = Case(difference, golden, target, tolerance)
        fault, text = NAMES[difference.name](case)
        return Finding(fault, difference.name, f"{text} ({case.where})")
    if found.astray is not None:
        return Finding("target", "ids", f"the target itself does not write token {found.astray} of the fixture")
    return None


def _tokens(case: Case) -> tuple[str, str]:
    (before, anchor), expected = case.difference.found[case.block].tolist(), case.difference.expected[case.block]
    if [anchor, before] == expected.tolist():
        return "token order", "the anchor and the token before it are exchanged"
    wanted = f"{int(expected[0])} and {int(expected[1])}"
    return "token order", f"the token before the anchor and the anchor are {before} and {anchor}, expected {wanted}"


def _taps(case: Case) -> tuple[str, str]:
    """Looks for the layer, the norm and the position that the tap really came from."""
    found, block = case.difference.found, case.block
    tap = int(case.difference.at[block].nonzero()[0, 0])
    layer = case.golden.facts.taps[tap]
    row, hints = found[block, tap], case.golden.hints
    if case.same(row, hints["normed"][block]):
        return "tap norm", f"tap {tap} (layer {layer}) is behind the final norm, expected the raw output of the layer"
    for name, place in sorted(PLACES.items(), key=lambda item: abs(item[1])):
        here = [at for at, one in enumerate(hints[name][block]) if case.same(row, one)]
        if place and layer in here:
            return "stale pivot", f"tap {tap} is that of the position {place:+d} from the pivot"
        if here:
            side = f", position {place:+d} from the pivot" if place else ""
            return "tap index", f"tap {tap} is the output of layer {here[0]}{side}, expected layer {layer}"
    return "tap", f"tap {tap} is no layer's output at the pivot or beside it, expected layer {layer}"


def _history(case: Case) -> tuple[str, str]:
    found, expected = (x[case.block, 0].item() for x in (case.difference.found, case.difference.expected))
    if found != expected:
        return "history", f"{found:g} positions of history are read, expected {expected:g}"
    return "history", f"the values of {found:g} positions of history differ: other positions, taps or fusion"


def _context(case: Case) -> tuple[str, str]:
    said = {
        "depth embedding": "the depth embedding is missing from the context rows",
        "context norm": "the context rows are not normalised",
        "depth embedding and context norm": "the context rows are the bare taps",
        "tap norm": "the last tap is on the wrong side of the final norm",
    }
    for name, text in said.items():
        hint = case.golden.hints.get(f"context: {name}")
        if hint is not None and case.same(case.difference.found[case.block], hint[case.block]):
            return name, text
    row = int(case.difference.at[case.block].nonzero()[0, 0])
    return "context", f"context row {row} differs though the taps agree: depth embedding, fusion or norm"


def _queries(case: Case) -> tuple[str, str]:
    """Looks for the token whose embedding stands in the row."""
    block = case.block
    row = int(case.difference.at[block].nonzero()[0, 0])
    known = max(1, case.difference.found.shape[1] - case.golden.script.K)  # where the anchor predicts, it is one of K
    before, anchor = case.golden.trace.tokens[block].tolist()
    token = _token_of(case, case.difference.found[block, row])
    stands = "is no token's embedding" if token is None else f"is the embedding of token {token}"
    if row >= known:
        return (
            "placeholder",
            f"the placeholder (row {row} of the block) {stands}, not what the drafter was trained with",
        )
    right = anchor if row == known - 1 else before
    if token == (before if right == anchor else anchor):
        return "token order", f"row {row} of the block {stands}, expected {right}: the anchor and the token before it"
    return "embedding", f"row {row} of the block {stands}, expected that of token {right}"


def _token_of(case: Case, row: Tensor) -> int | None:
    """The token with this embedding, the vocabulary gone through piece by piece."""
    for first in range(0, case.target.info.vocab_size, 8192):
        ids = torch.arange(first, min(first + 8192, case.target.info.vocab_size), device=case.target.device)
        words = case.target.embed(ids).detach().float().cpu()
        hit = (~differs(words, row.expand_as(words), case.tolerance)).nonzero()
        if len(hit):
            return first + int(hit[0, 0])
    return None


def _positions(case: Case) -> tuple[str, str]:
    found, expected = case.difference.found[case.block], case.difference.expected[case.block]
    gap = found - expected
    moved = gap[gap != 0]
    how = f", shifted by {int(moved[0]):+d}" if len(moved) and bool((moved == moved[0]).all()) else ""
    return "position", f"context and block stand at {_whole(found)}, expected {_whole(expected)}{how}"


def _whole(values: Tensor) -> list[int]:
    return [int(value) for value in values.tolist()]


def _hidden(case: Case) -> tuple[str, str]:
    row = int(case.difference.at[case.block].nonzero()[0, 0])
    return (
        "backbone",
        f"row {row} leaves the layers differently though all that goes in agrees: weights, RoPE, mask or norm",
    )


def _slots(case: Case) -> tuple[str, str]:
    block, hidden = case.block, case.golden.trace.hidden
    slot = int(case.difference.at[block].nonzero()[0, 0])
    if hidden is None:
        return "slot", f"slot {slot} reads another row of the block"
    reads, right = (
        next((at for at, one in enumerate(hidden[block]) if case.same(rows[block, slot], one)), None)
        for rows in (case.difference.found, case.difference.expected)
    )
    if reads is None:
        return "slot", f"slot {slot} reads what is no row of the block, expected row {right}"
    return "slot", f"slot {slot} reads row {reads} of the block, expected row {right}"


def _rows(case: Case) -> tuple[str, str]:
    slot = int(case.difference.at[case.block].nonzero()[0, 0])
    found, expected = (int(x[case.block, slot]) for x in (case.difference.found, case.difference.expected))
    return (
        "id map",
        f"the token before slot {slot} goes to row {found} of the draft vocabulary, expected row {expected}",
    )


def _logits(case: Case) -> tuple[str, str]:
    block = case.block
    slot = int(case.difference.at[block].nonzero()[0, 0])
    found, expected = (x[block, slot].sort().values for x in (case.difference.found, case.difference.expected))
    if case.same(found, expected):
        return "id map", f"the logits of slot {slot} are the right ones in another order: rows of the draft vocabulary"
    return "head", f"the logits of slot {slot} differ though all that goes in agrees: weights or state of the head"


def _drafts(case: Case) -> tuple[str, str]:
    slot = int(case.difference.at[case.block].nonzero()[0, 0])
    found, expected = (int(x[case.block, slot]) for x in (case.difference.found, case.difference.expected))
    return "id map", f"the best row of slot {slot} is said to be token {found}, expected token {expected}"


NAMES: dict[str, Callable[[Case], tuple[str, str]]] = {
    "tokens": _tokens,
    "taps": _taps,
    "history": _history,
    "context": _context,
    "queries": _queries,
    "positions": _positions,
    "hidden": _hidden,
    "slots": _slots,
    "rows": _rows,
    "logits": _logits,
    "drafts": _drafts,
}
