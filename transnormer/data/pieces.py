"""Cutting a text where byte-level BPE and word tokenizers do not notice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Only these four: Python counts as spaces also some characters, U+001C to U+001F, that byte-level BPE joins to a word.
_LAST_WORD_END = re.compile(r".*\S(?=[ \t\r\n])", re.DOTALL)


def cut_safely(parts: Iterable[str]) -> Iterator[str]:
    """The text of all parts in other pieces: each but the first begins with the spaces that follow a word.

    No word and no run of spaces spans such a place, and byte-level BPE looks at a run of spaces together with what
    follows it, never with what precedes it: encoding the pieces equals encoding the whole.
    """
    pending = ""
    for part in parts:
        seen = len(pending)
        pending += part
        # What was pending had no place to cut. Looking only at what is new keeps the time linear without any spaces.
        if found := _LAST_WORD_END.match(pending, max(seen - 1, 0)):
            yield pending[: found.end()]
            pending = pending[found.end() :]
    if pending:
        yield pending


def safe_pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of about `size` characters, longer where there is no safe place to cut."""
    return cut_safely(text[start : start + size] for start in range(0, len(text), size))
