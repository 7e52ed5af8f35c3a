"""``dlite workloads``: the public workloads that have a name, and their rules."""

from __future__ import annotations


def workloads() -> None:
    """List the workloads that dlite bench and dlite study know by name: where they come from and their published rules.

    NAME alone reads from the hub (extra: dlite[hub]; BFCL: dlite[bfcl]); NAME=FILE reads a file of yours under the same
    rules. Options that are given come before rules.

    Example: dlite bench --workload gsm8k --workload swe-bench=traces.jsonl --calls 50 --out out/
    """
    from textwrap import fill

    from dlite.bench.named import GROUPS, WORKLOADS, Hub

    for one in WORKLOADS:
        source = one.source.path if isinstance(one.source, Hub) else one.source
        count = "all" if one.count is None else f"{one.count} {one.unit}"
        context = f", more than {one.min_context:,} prompt tokens" if one.min_context else ""
        print(f"{one.name}: {source}\n    {count}, {one.max_new_tokens:,} new tokens{context}")
        print(fill(one.rule, 110, initial_indent="    ", subsequent_indent="    "))
    for name, members in GROUPS.items():
        print(f"{name}: {', '.join(members)}")
