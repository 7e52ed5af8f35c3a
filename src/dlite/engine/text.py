"""Text as it appears, token by token."""

from __future__ import annotations

from typing import Any


class TextStream:
    """Incremental detokenisation: ``push`` returns what a token adds, holding back unfinished characters."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._context = 0  # ids from here on are decoded together, so that spacing rules see their left neighbour
        self._read = 0  # ids up to here have been returned

    def push(self, token: int) -> str:
        """The new text, '' while a character is incomplete."""
        if self.tokenizer is None:
            return ""
        self.ids.append(token)
        known = self._decode(self.ids[self._context : self._read])
        text = self._decode(self.ids[self._context :])
        if text.endswith("\ufffd") or len(text) <= len(known):
            return ""
        self._context, self._read = self._read, len(self.ids)
        return text[len(known) :]

    def flush(self) -> str:
        """What was held back, at the end."""
        if self.tokenizer is None:
            return ""
        known = self._decode(self.ids[self._context : self._read])
        rest = self._decode(self.ids[self._context :])[len(known) :]
        self._context = self._read = len(self.ids)
        return rest

    def _decode(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""
