"""Cutting a text where byte-level BPE and word tokenizers do not notice."""

from __future__ import annotations

from collections.abc import Iterator


def last_safe_cut(text: str) -> int:
    """The last line end that follows a visible character, or 0 if there is none.

    No word and no run of spaces spans that place, and byte-level BPE looks at a run of spaces together with what
    follows it, never with what precedes it: encoding the two parts equals encoding the whole.
    """
    end = len(text)
    while (end := text.rfind("\n", 0, end)) > 0:
        if not text[end - 1].isspace():
            return end
    return 0


def safe_pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of about `size` characters, longer where there is no safe place to cut."""
    pending = ""
    for start in range(0, len(text), size):
        pending += text[start : start + size]
        cut = last_safe_cut(pending)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending
