"""Which turns of which conversations are replayed, rendered for the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dlite.errors import ConfigError
from dlite.traces.render import Renderer
from dlite.traces.skipped import Skipped
from dlite.traces.trace import Trace, UnusableError, tool_of

TOO_LONG = "a turn behind more tokens than fit"
TOO_SHORT = "a turn behind fewer tokens than asked for"


@dataclass(frozen=True)
class Turn:
    """One call to the target.

    ``ids`` are the history as logged; ``before`` is what a server holds from the turn before, its logged answer
    included, () if none came before. ``tool`` is what the log calls at this place. ``logged`` counts the tokens of
    the log's own answer, 0 where it has none.
    """

    id: str
    trace: str
    layout: str
    number: int
    tool: str
    ids: tuple[int, ...]
    before: tuple[int, ...]
    logged: int
    cut: bool


@dataclass(frozen=True)
class Choice:
    """How many turns, from how many in each trace, behind how many tokens."""

    max_calls: int
    per_trace: int
    min_context: int
    max_context: int

    def __post_init__(self) -> None:
        if self.max_calls < 1 or self.per_trace < 1:
            raise ConfigError(
                f"{self.max_calls} calls, {self.per_trace} a trace were asked for. Expected 1 or more of each. Raise them."
            )
        if not 0 <= self.min_context <= self.max_context:
            raise ConfigError(
                f"the context range is {self.min_context} to {self.max_context}. Expected 0 <= min_context <= max_context. "
                "Widen the range or ask for fewer new tokens."
            )


def choose_turns(traces: Sequence[Trace], rendering: Renderer, choice: Choice, skipped: Skipped) -> list[Turn]:
    """Turns of the traces in their order, spread evenly over those of a trace that fit, the first and the last included.

    Up to ``per_trace`` of each; traces that hold more make up for those that hold fewer. The turns of a trace follow
    each other.
    """
    chosen: list[tuple[Trace, list[int]]] = []
    for trace in traces:
        if sum(min(choice.per_trace, len(places)) for _, places in chosen) >= choice.max_calls:
            break
        try:
            fitted = rendering.fitted(trace, choice.max_context)
            places = _fitting(fitted, rendering, choice, skipped)
        except UnusableError as reason:
            skipped.note(str(reason), trace.id)
            continue
        if places:
            chosen.append((fitted, places))
    shares = _shares([len(places) for _, places in chosen], choice)
    originals = {trace.id: trace for trace in traces}
    return [
        _turn(trace, place, rendering, cut=trace is not originals[trace.id])
        for (trace, places), share in zip(chosen, shares, strict=True)
        for place in _spread(places, share)
    ]


def _fitting(trace: Trace, rendering: Renderer, choice: Choice, skipped: Skipped) -> list[int]:
    """Places whose prompt has the wanted length. Prompts grow from turn to turn, so the ends are found by halving."""
    lengths: dict[int, int] = {}

    def tokens(place: int) -> int:
        if place not in lengths:
            lengths[place] = len(rendering.ids(trace, place))
        return lengths[place]

    first = _first(trace.turns, lambda place: tokens(place) >= choice.min_context)
    end = _first(trace.turns, lambda place: tokens(place) > choice.max_context)
    for reason, count in ((TOO_SHORT, min(first, end)), (TOO_LONG, len(trace.turns) - end)):
        if count:
            skipped.note(reason, trace.id, count)
    return list(trace.turns[first:end])


def _first(places: Sequence[int], true: Callable[[int], bool]) -> int:
    """Index of the first place from which on something is true; the number of places where it never is."""
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2
        if true(places[middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _shares(sizes: Sequence[int], choice: Choice) -> list[int]:
    """How many turns each trace gives."""
    shares = [0] * len(sizes)
    left = choice.max_calls
    for most in (choice.per_trace, choice.max_calls):
        for i, size in enumerate(sizes):
            more = max(0, min(size, most) - shares[i])
            shares[i] += min(more, left)
            left -= min(more, left)
    return shares


def _spread(places: Sequence[int], count: int) -> list[int]:
    """``count`` of the places, evenly; one alone is the last."""
    if count == 1:
        return [places[-1]]
    return [places[round(i * (len(places) - 1) / (count - 1))] for i in range(count)]


def _turn(trace: Trace, place: int, rendering: Renderer, *, cut: bool) -> Turn:
    logged = trace.logged(place)
    words = "" if logged is None else str(logged["content"]) + str(logged.get("tool_calls") or "")
    return Turn(
        id=f"{trace.id}, message {place + 1}",
        trace=trace.id,
        layout=trace.layout,
        number=trace.number(place),
        tool=tool_of(logged),
        ids=rendering.ids(trace, place),
        before=_before(trace, place, rendering),
        logged=len(rendering.tokenizer.encode(words, add_special_tokens=False)),
        cut=cut,
    )


def _before(trace: Trace, place: int, rendering: Renderer) -> tuple[int, ...]:
    """The prompt up to and with the last answer before a place."""
    last = next((i for i in range(place - 1, -1, -1) if trace.messages[i]["role"] == "assistant"), None)
    try:
        return () if last is None else rendering.ids(trace, last + 1)
    except UnusableError:  # a template that minds a conversation ending with an answer
        return ()
