"""Text as bytes: the id of a byte is its value plus one, and 0 is left for padding. Any bytes will do, UTF-8 or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transnormer.errors import DataError
from transnormer.files import read_errors

MAX_BYTES = 4000


def to_ids(text: bytes) -> np.ndarray:
    """The ids 1 .. 256 of the first 4,000 bytes."""
    return np.frombuffer(text[:MAX_BYTES], dtype=np.uint8).astype(np.uint16) + 1


def to_text(ids: np.ndarray) -> str:
    """The text again, for people: a byte that is not UTF-8 shows as a replacement character."""
    return (ids[ids > 0] - 1).astype(np.uint8).tobytes().decode("utf-8", errors="replace")


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """('FILE line N', content) of each line, without its end."""
    with read_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
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


def parse_label(text: str, where: str, num_labels: int = 2) -> int:
    """A label 0 .. num_labels - 1, written as 1 or as 1.0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value not in range(num_labels):
        raise DataError(f"{where}: the label is '{text[:20]}'", f"labels are 0 .. {num_labels - 1}")
    return int(value)
