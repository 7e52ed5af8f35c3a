"""A tiny exact target for tests, documentation and the tour: no kernels, so every pass gives the same numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlite.nn.backbone import BackboneConfig
from dlite.target.base import Rows, TargetInfo, TargetOutput


class ToyTokenizer:
    """Each id is one character, from id 1 = 'a' on; id 0 is the silent stop token."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = 0
        self.chat_template = None

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Letters of the ids; id 0, the stop token, is silent."""
        return "".join(chr(96 + i) for i in ids if i or not skip_special_tokens)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the letters; a letter outside the vocabulary wraps around."""
        return [(ord(c) - 96) % self.vocab_size for c in text]

    def get_vocab(self) -> dict[str, int]:
        """Letter -> id."""
        return {chr(96 + i): i for i in range(self.vocab_size)}


class ToyCache:
    """Remembers the token ids of each row; the toy needs no key-values."""

    def __init__(self, rows: int) -> None:
        self.lengths = [0] * rows
        self.tokens: list[list[int]] = [[] for _ in range(rows)]

    def reserve(self, length: int) -> None:
        """Python lists grow by themselves."""

    def move(self, source: int, row: int) -> None:
        """Copy one row over another."""
        self.tokens[row], self.lengths[row] = list(self.tokens[source]), self.lengths[source]

    def export(self, row: int, length: int) -> list[int]:
        """The first ``length`` tokens."""
        return self.tokens[row][:length]

    def restore(self, row: int, saved: list[int], length: int) -> None:
        """Put tokens back."""
        self.tokens[row], self.lengths[row] = saved[:length], length


class ToyTarget:
    """A second-order Markov chain with random fp32 logits; 'layers' are fixed projections of the last two tokens.

    ``sharpness`` scales the logits: high values make the chain nearly deterministic.
    """

    def __init__(
        self,
        vocab_size: int = 12,
        hidden_size: int = 16,
        num_layers: int = 6,
        *,
        seed: int = 0,
        sharpness: float = 2.0,
        context_length: int = 512,
        stop: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        V, D = vocab_size, hidden_size
        self._table = torch.randn(V, V, D, generator=generator)
        self._layers = torch.randn(num_layers, D, D, generator=generator) / D**0.5
        self._head = torch.randn(V, D, generator=generator) * sharpness / D**0.5
        self._embedding = torch.randn(V, D, generator=generator)
        self.tokenizer: Any = ToyTokenizer(vocab_size)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.info = TargetInfo(
            "toy",
            V,
            D,
            num_layers,
            context_length,
            frozenset({0} if stop else ()),
            f"toy-{vocab_size}",
            BackboneConfig(D, num_layers, 2, 1, D // 2, 2 * D),
        )

    def new_cache(self, rows: int, length: int) -> ToyCache:
        """An empty cache."""
        return ToyCache(rows)

    def forward(self, tokens: Tensor, cache: ToyCache, first: int, taps: tuple[int, ...], rows: Rows) -> TargetOutput:
        """Logits and taps of tokens [B,R]."""
        previous = []
        for b, new in enumerate(tokens.tolist()):
            index = first + b
            known = cache.tokens[index][: cache.lengths[index]]
            cache.tokens[index] = known + new
            previous.append([known[-1] if known else 0, *new[:-1]])
        hidden = self._states(torch.tensor(previous), tokens)
        if rows == "last":
            hidden = hidden[:, -1:]
        logits = _times((hidden if rows == "all" else hidden[:, -1:])[..., -1, :], self._head)
        return TargetOutput(logits, hidden[..., list(taps), :])

    def embed(self, tokens: Tensor) -> Tensor:
        """Input embeddings: [...] -> [...,D]."""
        return self._embedding[tokens]

    def final_norm(self, tap: Tensor) -> Tensor:
        """The toy has no final norm."""
        return tap

    def last_tap_logits(self, tap: Tensor, vocab: Tensor | None = None) -> Tensor:
        """Logits from the last layer's output."""
        return _times(tap, self._head if vocab is None else self._head[vocab])

    def output_weight(self) -> tuple[Tensor, Tensor]:
        """(head [V,D], ones [D])."""
        return self._head, torch.ones(self.info.hidden_size)

    def _states(self, previous: Tensor, tokens: Tensor) -> Tensor:
        """Layer outputs [...,layers,D]."""
        base = self._table[previous, tokens]
        return _times(base.unsqueeze(-2), self._layers.transpose(1, 2))


def _times(x: Tensor, matrix: Tensor) -> Tensor:
    """x [...,D] through matrix [...,E,D] -> [...,E]: one sum a number, where a matrix kernel's order depends on sizes."""
    return (x.unsqueeze(-2) * matrix).sum(-1)
