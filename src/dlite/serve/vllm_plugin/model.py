"""What vLLM's registry looks at before there is a worker: that the architecture exists, and what it can do."""

from __future__ import annotations

from torch import nn


class DLiteDraftModel(nn.Module):
    """A name with no abilities of its own: no attention layer of vLLM's, so no draft KV; no logits of its own.

    The network is dlite's (``drafters/dlite.py``), opened by the V1 proposer or the V2 speculator.
    """

    def __init__(self, *, vllm_config: object, prefix: str = "") -> None:
        raise RuntimeError(
            "a DLite is not a model to serve. Serve its target, with --speculative-config "
            '\'{"method": "dflash", "model": FOLDER, "num_speculative_tokens": 7}\'.'
        )
