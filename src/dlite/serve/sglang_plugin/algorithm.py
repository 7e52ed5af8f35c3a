"""DLITE as SGLang's registry of speculative algorithms knows it."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from dlite.serve.sglang_plugin.limits import prepare


class DLiteAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
    """Drafts without keys and values of its own; what it hands from round to round is the newest token alone.

    ``need_topk``, ``carries_draft_hidden_states`` and ``create_future_map`` are asked of every algorithm, and
    ``CustomSpecAlgo`` of 0.5.23 lacks them.
    """

    def has_draft_kv(self) -> bool:
        """Nothing is cached for the drafter."""
        return False

    def need_topk(self) -> bool:
        """A chain, not a tree."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """The next round needs none."""
        return False

    def create_future_map(
        self, device: Any, pool: Any, needs_cpu_seq_lens: bool = True, needs_confidence_relay: bool = False
    ) -> Any:
        """What carries the newest token from one overlapped step to the next."""
        return FutureMap(device, self, pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Check the server's arguments, fill in what is missing. Errors: ``DliteError``."""
        prepare(server_args)


def worker_class(server_args: Any) -> type:
    """The class that SGLang makes one object of for every model worker."""
    from dlite.serve.sglang_plugin.worker import DLiteWorker

    return DLiteWorker
