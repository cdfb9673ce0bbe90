"""Sums of the blocks of a file: its sha256 says that it was altered, these say where."""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path

BLOCK = 2**16  # bytes
DIGITS = 8  # of the crc32 of a block, in hexadecimal


class BlockSums:
    """crc32 of every 64 KiB of what is written, however it comes in parts."""

    def __init__(self) -> None:
        self._ended: list[int] = []
        self._crc32 = self._filled = 0

    def update(self, data: bytes) -> None:
        """More of the file."""
        rest = memoryview(data)
        while rest:
            part, rest = rest[: BLOCK - self._filled], rest[BLOCK - self._filled :]
            self._crc32 = zlib.crc32(part, self._crc32)
            self._filled += len(part)
            if self._filled == BLOCK:
                self._ended.append(self._crc32)
                self._crc32 = self._filled = 0

    def hexdigest(self) -> str:
        """The sums of all blocks, one behind the other; the last block may be shorter."""
        sums = [*self._ended, self._crc32] if self._filled else self._ended
        return "".join(f"{value:0{DIGITS}x}" for value in sums)


def sums_of(path: Path) -> tuple[str, str]:
    """The sha256 of a file and the sums of its blocks, in one reading."""
    whole, blocks = hashlib.sha256(), BlockSums()
    with path.open("rb") as file:
        while data := file.read(2**20):
            whole.update(data)
            blocks.update(data)
    return whole.hexdigest(), blocks.hexdigest()


def place_of(actual: str, recorded: str) -> str:
    """Where two files of one length differ, by the sums of their blocks, in words; nothing where no sum tells."""
    starts = range(0, len(recorded), DIGITS)
    differing = [at // DIGITS for at in starts if actual[at : at + DIGITS] != recorded[at : at + DIGITS]]
    if not differing:
        return ""
    first, last = differing[0] * BLOCK, (differing[0] + 1) * BLOCK - 1
    more = f" and elsewhere, {len(differing):,} blocks in all" if len(differing) > 1 else ""
    return f" in bytes {first:,} to {last:,}{more}"
