"""Ids to text as they come: what is shown never changes later, even when a character spans several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# What UTF-8 decoding puts in place of an unfinished character, and of bytes that are none.
_REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """Turns a stream of ids into a stream of text whose concatenation is all ids decoded together.

    A tokenizer writes a token by what stands before it (the space between two words, the bytes of one character), so
    ids are decoded together with a window of earlier ones, and only what was not shown yet is handed out.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = list(context)[-8:]
        self._shown = len(self._decode())

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._window.append(token)
        text = self._decode()
        if text.endswith(_REPLACEMENT):
            return self._hand_out(text, len(text) - 1)
        piece = self._hand_out(text, len(text))
        if piece:  # a token that shows nothing, such as <eos>, leaves the window alone: the next may need the space
            self._window = self._window[-1:]
            self._shown = len(self._decode())
        return piece

    def flush(self) -> str:
        """What is left at the end: an unfinished character, as a replacement mark."""
        text = self._decode()
        return self._hand_out(text, len(text))

    def _hand_out(self, text: str, until: int) -> str:
        piece = text[self._shown : until]
        self._shown = max(self._shown, until)
        return piece

    def _decode(self) -> str:
        return str(self._tokenizer.decode(self._window, skip_special_tokens=True, clean_up_tokenization_spaces=False))
