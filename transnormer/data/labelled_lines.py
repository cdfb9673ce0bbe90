"""Text files with an example on each line: lines that know where they stand, and labels that are numbers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from transnormer.errors import DataError
from transnormer.files import read_errors

_LONGEST_LINE = 2**24


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """('FILE line N', content) of each line, without its end."""
    with read_errors(path), path.open("rb") as file:
        for number in count(1):
            line = file.readline(_LONGEST_LINE + 1)
            if not line:
                return
            if len(line) > _LONGEST_LINE:
                hint = "an example is on a line of its own: is this the right file?"
                raise DataError(f"{path} line {number} is longer than {_LONGEST_LINE:,} bytes", hint)
            yield f"{path} line {number}", line.rstrip(b"\r\n")


def count_lines(path: Path) -> int:
    """Number of lines; a DataError where there are none."""
    if count := sum(1 for _ in lines(path)):
        return count
    raise DataError(f"{path} is empty", "is the file complete?")


def require_text(text: bytes, where: str) -> bytes:
    """A text that says something."""
    if not text.strip():
        raise DataError(f"{where}: the text is empty", "remove it, or put the text in")
    return text


def parse_label(text: str, where: str) -> int:
    """A label 0 or 1, also written as 0.0 or 1.0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value not in (0, 1):
        raise DataError(f"{where}: the label is '{text[:20]}'", "labels are 0 .. 1")
    return int(value)
