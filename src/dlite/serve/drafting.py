"""A DLite inside another engine: the taps and anchors of a batch in, draft tokens and their q out.

What the plug-ins for vLLM and SGLang share. No engine is imported here, and the network is the one class of
``drafters/dlite.py``, so that there is one place where its mathematics stand:

    network = open_dlite(folder, Lent(info, embed, final_norm), K, device, dtype)    # once, when the engine loads
    tokens = draft(network, taps, anchor, before, K, Greedy())                       # every round, [B,K]
    chooser = Sampled(temperature, coins, info.vocab_size)                           # where requests are sampled
    tokens = draft(network, taps, anchor, before, K, chooser)
    q = chooser.probs                                                                # [B,K,V], of the target's vocabulary

``draft`` never waits for the device, so that it can be captured as a CUDA graph. Nothing is kept between rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dlite.checkpoint import check_fit, load_drafter
from dlite.checkpoint.files import Provenance
from dlite.drafters.base import Picker
from dlite.drafters.dlite import DLite
from dlite.errors import CheckpointError, ConfigError
from dlite.sampling import draw
from dlite.target.base import TargetInfo
from dlite.types import View


@dataclass(frozen=True)
class Lent:
    """What the engine's target lends to the drafter.

    embed: token ids [...] -> [...,D], as the first layer sees them; final_norm: raw last tap [...,D] -> [...,D].
    ``info`` may lack the tokenizer hash (""): then tokenizers are not compared.
    """

    info: TargetInfo
    embed: Callable[[Tensor], Tensor]
    final_norm: Callable[[Tensor], Tensor]


def open_dlite(folder: str | Path, lent: Lent, K: int, device: torch.device, dtype: torch.dtype) -> DLite:
    """The drafter of a folder, ready to draft K tokens a round for this target. Errors: ``DliteError``."""
    network, provenance = load_drafter(folder)
    if not isinstance(network, DLite) or network.config.history_window:
        what = "a DLite that keeps a history" if isinstance(network, DLite) else f"the drafter {network.name}"
        raise CheckpointError(
            f"{folder} holds {what}. Expected a DLite without history: engines run no other drafter of ours. Use it with "
            "dlite generate."
        )
    if not lent.info.tokenizer_hash:
        provenance = Provenance(provenance.target)
    check_fit(network.config, provenance, lent.info)
    if not 1 <= K <= network.max_drafts:
        raise ConfigError(
            f"{K} drafts a round are asked of {folder}. It was trained for 1 to {network.max_drafts}. Ask for as many."
        )
    return network.attach(lent).to(device, dtype).freeze()  # type: ignore[arg-type]


@torch.inference_mode()
def draft(network: DLite, taps: Tensor, anchor: Tensor, before: Tensor, K: int, chooser: Picker) -> Tensor:
    """Draft tokens [B,K] from the taps at the pivots [B,n,D], shallow first, the anchors [B] and the tokens at the pivots [B]."""
    return network.draft(View(anchor, before, taps, ()), K, chooser)[0]


class Greedy:
    """The likeliest token, for every request."""

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """See ``Picker``."""
        best = logits.argmax(-1)
        return best if ids is None else ids[best]


class Sampled:
    """Draws at each request's temperature and keeps the q of every draft in ``probs`` [B,K,V], zero outside the draft vocabulary.

    temperature [B], 0 for requests that take the likeliest token (their q is one-hot); coins [B,K] in [0,1).
    Truncation (top-k, top-p) is left to the target's side: rejection needs nothing of q but that it was drawn from.
    """

    def __init__(self, temperature: Tensor, coins: Tensor, vocab_size: int) -> None:
        self.temperature, self.coins = temperature.float()[:, None], coins
        self.probs = torch.zeros(*coins.shape, vocab_size, device=coins.device)

    def choose(self, slot: int, logits: Tensor, ids: Tensor | None = None) -> Tensor:
        """See ``Picker``."""
        cold = self.temperature <= 0
        warm = (logits.float() / self.temperature.masked_fill(cold, 1.0)).softmax(-1)
        q = torch.where(cold, torch.zeros_like(warm).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0), warm)
        if ids is None:
            self.probs[:, slot] = q
        else:
            self.probs[:, slot].index_copy_(1, ids, q)
        drawn = draw(q, self.coins[:, slot])
        return drawn if ids is None else ids[drawn]
