"""A table of a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """The first `texts` columns are text, the others numbers, which are flushed right."""
    lines = [f"| {' | '.join(line)} |" for line in (columns, *rows)]
    return "\n".join([lines[0], "|---" * texts + "|---:" * (len(columns) - texts) + "|", *lines[1:]])
