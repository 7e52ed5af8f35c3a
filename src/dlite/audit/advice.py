"""What the figures say in plain words: warnings, a recommendation, and the flags to set. From the report alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Report = dict[str, Any]
Flags = Mapping[str, Sequence[tuple[str, str]]]
FEW_CALLS = 20
NEAR_ONE = 0.97  # a share of accepted drafts that is too good to be true for most text
WORTH_TRYING = 1.05  # a predicted gain over the measured K that is worth another run


def warnings(report: Report) -> list[str]:
    """What to know before believing a figure."""
    found = ["Ctrl-C ended the run: these are the turns measured by then."] if report["interrupted"] else []
    found += report["reading"]["notes"]
    if report["source"] == "replay":
        found += _answer_warnings(report["answers"]) + _loop_warnings(report)
        found += [_unlike(arm) for arm in report["arms"] if arm["lossless"] is False]
    found += [_too_good(row) for row in _overall(report) if row["acceptance"] and row["acceptance"][0] >= NEAR_ONE]
    calls = max((row["calls"] for row in _overall(report)), default=0)
    if report["source"] == "replay" and 0 < calls < FEW_CALLS:
        found.append(
            f"Only {calls} call{'s' * (calls != 1)}: intervals are wide, and the groups of few calls say little."
        )
    return found


def advice(report: Report, flags: Flags) -> dict[str, Any]:
    """``headline``, ``sentences`` and ``flags`` to set, each (where, words)."""
    rows = {row["arm"]: row for row in _overall(report)}
    if report["source"] == "server":
        return _server_advice(rows)
    if not rows:
        return _said("There is nothing to judge: every answer ended in repetition.", ["--include-loops counts them."])
    drafting = [arm for arm in report["arms"][1:] if arm["lossless"] and rows[arm["name"]]["speedup"]]
    if not report["arms"][1:]:
        return _said(_plain_headline(rows), _plain_sentences(report, rows))
    if not drafting:
        return _said(
            "Do not serve these drafts: the text was not shown to be the target's own.",
            ["No speed-up is shown. See the differences below; in float32 there should be none."],
        )
    best = max(drafting, key=lambda arm: rows[arm["name"]]["speedup"]["value"])
    row = rows[best["name"]]
    sentences = [
        _whole_call(row),
        *_lengths(report, best["name"]),
        *_batches(report, best),
        *_other_k(report, best),
        *_reuse(report, best["name"]),
    ]
    low, value, high = (row["speedup"][key] for key in ("low", "value", "high"))
    if value < 1:
        headline = (
            f"Leave speculation off: {best['name']}, the best arm, decodes at {value:.2f}× the pace of plain decoding."
        )
        return _said(headline, sentences, [])
    words = f"{value:.2f}× as fast as plain decoding"
    if low is None or low <= 1 <= high:
        return _said(
            f"Too close to call: {best['name']} decodes {words}, within error.", sentences, flags.get(best["name"], ())
        )
    return _said(
        f"Use {best['name']}: on these {row['calls']} calls it decodes {words}.", sentences, flags.get(best["name"], ())
    )


def _said(headline: str, sentences: Sequence[str], flags: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    return {"headline": headline, "sentences": [s for s in sentences if s], "flags": [list(flag) for flag in flags]}


def _overall(report: Report) -> list[dict[str, Any]]:
    return [row for row in report["figures"] if row["by"] == "all"]


def _answer_warnings(answers: Mapping[str, Any]) -> list[str]:
    found, calls = [], answers["calls"]
    if answers["cut_by_limit"]:
        logged = answers["median_logged_tokens"]
        beside = f" The log's own answers have {logged:.0f} in the middle." if logged else ""
        found.append(
            f"{answers['cut_by_limit']} of {calls} answers were cut at the limit of new tokens, so the ends of answers are "
            f"not in these figures.{beside} --max-new-tokens raises the limit."
        )
    if answers["cut_by_context"]:
        found.append(f"{answers['cut_by_context']} of {calls} answers ran out of the target's context.")
    if answers["prompts_cut"]:
        found.append(f"{answers['prompts_cut']} of {calls} prompts lost their middle to fit the target's context.")
    return found


def _loop_warnings(report: Report) -> list[str]:
    loops, calls = report["answers"]["loops"], report["answers"]["calls"]
    if not loops:
        return []
    counted = report["settings"]["include_loops"]
    fate = (
        "counted in: they flatter every drafter"
        if counted
        else "left out of the figures, as they flatter every drafter"
    )
    rows = {row["arm"]: row for row in _overall(report)}
    inflated = [
        f"{arm['name']} would show tau {arm['tau_with_loops']:.2f} with them, {rows[arm['name']]['tau']['value']:.2f} without"
        for arm in report["arms"][1:]
        if not counted and arm["name"] in rows and rows[arm["name"]]["tau"]
    ]
    return [". ".join([f"{loops} of {calls} answers repeat themselves, {fate}", *inflated]) + "."]


def _unlike(arm: Mapping[str, Any]) -> str:
    kind = (
        "its own answers differ with and without prefix reuse"
        if arm["name"] == "plain"
        else "it is not the target's text"
    )
    return f"{arm['name']}: {kind}, so no speed-up is shown for it."


def _too_good(row: Mapping[str, Any]) -> str:
    return (
        f"{row['arm']}: {row['acceptance'][0]:.0%} of first drafts were accepted. So near to all, look at the answers: text "
        "that is copied, repeated or the same in every call is accepted whatever drafts it."
    )


def _plain_headline(rows: Mapping[str, Any]) -> str:
    seconds = rows["plain"]["seconds"]
    share = seconds["prefill"] / (sum(seconds.values()) or 1)
    return f"Without drafts, {share:.0%} of the time of a call is prefill; the rest is what speculation can shorten."


def _plain_sentences(report: Report, rows: Mapping[str, Any]) -> list[str]:
    copies = _copied_share(report)
    found = ["Nothing was drafted in this run. Give a --drafter to see what it brings."]
    if copies is not None and copies >= 0.1:
        found.append(
            f"{copies:.0%} of the answers' tokens repeat eight or more tokens of the history: a drafter that looks them up "
            "there costs nothing to train."
        )
    return found


def _copied_share(report: Report) -> float | None:
    pairs = [pair for trial in report["trials"] if trial["arm"] == "plain" for pair in trial.get("copied", ())]
    whole = sum(count for _, count in pairs)
    return sum(count for is_copy, count in pairs if is_copy) / whole if whole else None


def _whole_call(row: Mapping[str, Any]) -> str:
    seconds = row["seconds"]
    share = seconds["prefill"] / (sum(seconds.values()) or 1)
    ratio = row["call_ratio"]["value"] if row["call_ratio"] else None
    whole = "" if ratio is None else f" A whole call, prefill included, is {ratio:.2f}× as fast."
    cost = f" and costs {row['round_cost']:.2f} plain steps" if row["round_cost"] else ""
    return f"A round commits {row['tau']['value']:.2f} tokens{cost}.{whole} Prefill is {share:.0%} of a call's time."


def _lengths(report: Report, arm: str) -> list[str]:
    found = next((one for one in report["break_even"] if one["arm"] == arm), None)
    if found is None or found["loses_from"] is None:
        return []
    groups = [row["group"] for row in report["figures"] if row["by"] == "context" and row["arm"] == arm]
    if found["loses_from"] == groups[0]:
        return ["It costs more than it gives at every length of the context."]
    return [f"From a context of {found['loses_from']} tokens on it costs more than it gives: switch it off there."]


def _batches(report: Report, arm: Mapping[str, Any]) -> list[str]:
    """From how many requests at a time on the measured K, and every K, is predicted to cost more than it gives."""
    found = next((one for one in report["break_even"] if one["arm"] == arm["name"]), None)
    stops = dict(found["stops"]) if found else {}
    if found is None or arm["K"] not in stops:
        return []
    largest, paces = found["by_batch"][-1]
    speeds = {pace["K"]: pace["tau"] / pace["cost"] for pace in paces}
    stop, best = stops[arm["K"]], max(speeds, key=lambda K: speeds[K])
    if stop is None:
        return [
            f"With up to {largest} requests at a time it is predicted to pay: {speeds[arm['K']]:.2f}× at {largest}."
        ]
    begin = f"With {stop} or more requests at a time" if stop > 1 else "Whatever the number of requests at a time,"
    words = f"{begin} K = {arm['K']} is predicted to cost more than it gives"
    if stops[best] is None:
        return [f"{words}; K = {best} still pays at {largest}, {speeds[best]:.2f}×."]
    return [f"{words}; at {largest} no K pays: switch it off there."]


def _other_k(report: Report, arm: Mapping[str, Any]) -> list[str]:
    """Whether another K is predicted to do clearly better than the measured one."""
    found = next((one for one in report["break_even"] if one["arm"] == arm["name"]), None)
    speeds = {p["K"]: p["tau"] / p["cost"] for p in found["paces"]} if found else {}
    if not speeds or arm["K"] not in speeds:
        return []
    best = max(speeds, key=lambda K: speeds[K])
    if speeds[best] < WORTH_TRYING * speeds[arm["K"]]:
        return []
    return [
        f"Fewer drafts may do better: for K = {best} the measured costs predict {speeds[best]:.2f}×, for K = {arm['K']} "
        f"{speeds[arm['K']]:.2f}×. Measure it: -K {best}."
    ]


def _reuse(report: Report, arm: str) -> list[str]:
    rows = {row["reuse"]: row for row in report["reuse"] if row["arm"] == arm}
    if set(rows) != {"on", "off"} or not rows["on"]["reused_tokens"]:
        return []
    share = rows["on"]["reused_tokens"] / rows["on"]["prompt_tokens"]
    on, off = (rows[key]["seconds"]["prefill"] / rows[key]["calls"] for key in ("on", "off"))
    return [
        f"Keep prefix caching on: {share:.0%} of the prompt tokens stand from the turn before, and prefill takes {_time(on)} a "
        f"call instead of {_time(off)}."
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def _server_advice(rows: Mapping[str, Any]) -> dict[str, Any]:
    row = rows["server"]
    tau, acceptance = row["tau"]["value"], row["acceptance"]
    sentences = [
        f"Speculation pays while a round costs less than {tau:.2f} plain steps. The log has no times: measure a plain step "
        "and a round on your machine, or replay traces with dlite audit TRACES."
    ]
    rare = [i + 1 for i, share in enumerate(acceptance) if share < 0.05]
    flags = []
    if rare and rare[0] > 1:
        keep = rare[0] - 1
        tokens = 1 + sum(acceptance[:keep])
        sentences.append(
            f"Drafts from position {rare[0]} on are accepted in fewer than one round in twenty: with K = {keep} a round would "
            f"still commit {tokens:.2f} tokens and verify fewer rows."
        )
        flags = [("vLLM, in --speculative-config", f'"num_speculative_tokens": {keep}')]
    return _said(f"A round commits {tau:.2f} tokens on this server.", sentences, flags)
