"""Rows of public data sets, one at a time, through the ``datasets`` package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from dlite.bench.named import Hub
from dlite.errors import DataError, require


def hub_rows(source: Hub, name: str) -> Iterator[dict[str, Any]]:
    """The rows of a data set, streamed: nothing is held. Errors: ``DataError`` naming the way around the hub.

    Files of JSON are read as text, since their rows need not share a schema.
    """
    datasets = require("datasets", extra="hub")
    try:
        for row in islice(_opened(datasets, source), source.first):
            if not source.files:
                yield dict(row)
                continue
            value = json.loads(row["text"])
            yield from value if isinstance(value, list) else [value]
    except Exception as error:  # the package, its file systems and the network raise what they like
        first = (str(error).splitlines() or [""])[0]
        raise DataError(
            f"the workload {name} cannot be read from {source.path} ({type(error).__name__}: {first[:200]}). Expected the hub "
            f"to answer. Try again, or give a file of yours: --workload {name}=FILE"
        ) from None


def _opened(datasets: Any, source: Hub) -> Any:
    if source.files:
        by = "document" if source.files[0].endswith(".json") else "line"
        files = list(source.files)
        return datasets.load_dataset("text", split="train", streaming=True, data_files=files, sample_by=by)
    return datasets.load_dataset(source.path, source.config, split=source.split, streaming=True)
