"""Text in chunks that byte-level BPE and word tokenizers encode as they would the text in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Only these four: Python counts as spaces also some characters, U+001C to U+001F, that byte-level BPE joins to a word.
_LAST_WORD_END = re.compile(r".*\S(?=[ \t\r\n])", re.DOTALL)


def rechunk(chunks: Iterable[str]) -> Iterator[str]:
    """The same text in other chunks: each but the first begins with the spaces that follow a word.

    No word and no run of spaces spans such a boundary, and byte-level BPE looks at a run of spaces together with what
    follows it, never with what precedes it: encoding the chunks equals encoding the text.
    """
    pending = ""
    for chunk in chunks:
        seen = len(pending)
        pending += chunk
        # What was pending had no boundary. Looking only at what is new keeps the time linear without any spaces.
        if found := _LAST_WORD_END.match(pending, max(seen - 1, 0)):
            yield pending[: found.end()]
            pending = pending[found.end() :]
    if pending:
        yield pending


def text_chunks(text: str, size: int) -> Iterator[str]:
    """The text in chunks of about `size` characters, longer where there is no boundary."""
    return rechunk(text[start : start + size] for start in range(0, len(text), size))
