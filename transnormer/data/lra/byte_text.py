"""Text as bytes: the id of a byte is its value plus one, and 0 is left for padding. Any bytes will do, UTF-8 or not."""

from __future__ import annotations

import numpy as np

MAX_BYTES = 4000


def to_ids(text: bytes) -> np.ndarray:
    """The ids 1 .. 256 of the first 4,000 bytes."""
    return np.frombuffer(text[:MAX_BYTES], dtype=np.uint8).astype(np.uint16) + 1


def to_text(ids: np.ndarray) -> str:
    """The text again, for people: a byte that is not UTF-8 shows as a replacement character."""
    return (ids[ids > 0] - 1).astype(np.uint8).tobytes().decode("utf-8", errors="replace")
