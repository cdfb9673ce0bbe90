"""A long array of numbers in files of bounded size: written with hashes, read piece by piece."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

import numpy as np

from transnormer.data.block_sums import BlockSums
from transnormer.data.manifest import Shard, prepare_again
from transnormer.errors import DataError
from transnormer.files import flush, read_errors

MAX_ENTRIES = 2**27  # of one file


class ArrayWriter:
    """Appends to NAME-00000.bin, NAME-00001.bin, ... in a folder; the last file stays open until `finish`.

    `kept` entries that an earlier writer left there stay; what is behind them is cut off.
    """

    def __init__(self, folder: Path, name: str, dtype: np.dtype, max_entries: int = MAX_ENTRIES, kept: int = 0) -> None:
        self.folder, self.name, self.dtype, self.max_entries = folder, name, dtype, max_entries
        self.entries = 0
        self._shards: list[Shard] = []
        self._start_file(min(kept, max_entries))
        while self.entries < kept:
            self._end_file()
            self._start_file(min(kept - self.entries, max_entries))

    def _start_file(self, kept: int = 0) -> None:
        self._file_name = f"{self.name}-{len(self._shards):05d}.bin"
        path = self.folder / self._file_name
        self._sha256, self._blocks = hashlib.sha256(), BlockSums()
        self._file: BinaryIO = path.open("r+b" if kept else "wb")
        if kept:
            self._file.truncate(kept * self.dtype.itemsize)
            while data := self._file.read(2**20):
                self._update_sums(data)
        self._in_file = kept
        self.entries += kept

    def append(self, values: np.ndarray) -> None:
        """Adds numbers, which the caller knows to fit the dtype."""
        while len(values):
            if self._in_file == self.max_entries:
                self._end_file()
                self._start_file()
            fitting, values = np.split(values, [self.max_entries - self._in_file])
            data = fitting.astype(self.dtype).tobytes()
            self._file.write(data)
            self._update_sums(data)
            self._in_file += len(fitting)
            self.entries += len(fitting)

    def _end_file(self) -> None:
        flush(self._file)
        self._file.close()
        sha256, crc32 = self._sha256.hexdigest(), self._blocks.hexdigest()
        self._shards.append(Shard(file=self._file_name, tokens=self._in_file, sha256=sha256, crc32=crc32))

    def _update_sums(self, data: bytes) -> None:
        self._sha256.update(data)
        self._blocks.update(data)

    def finish(self) -> list[Shard]:
        """All files, on the disk, in reading order."""
        self._end_file()
        return self._shards

    def sync(self) -> None:
        """Waits until all that was appended is on the disk."""
        flush(self._file)

    def close(self) -> None:
        """Lets go of the open file, finished or not."""
        self._file.close()


class StoredArray:
    """The files as if they were one array; each is opened when first read.

    They are not mapped: of a file that is cut short meanwhile, a map would end the process without a word.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard], dtype: np.dtype) -> None:
        self.folder, self.shards, self.dtype = folder, shards, dtype
        self._starts = [0, *accumulate(shard.tokens for shard in shards)]
        self._files: dict[int, BinaryIO] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int, dtype: type[np.generic] | None = None) -> np.ndarray:
        """A copy of the entries start .. stop - 1, across files, in another dtype if wanted."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"entries {start}:{stop} of an array of {len(self)}")
        values = np.empty(stop - start, dtype=dtype or self.dtype)
        at = start
        while at < stop:
            number = bisect_right(self._starts, at) - 1
            end = min(stop, self._starts[number + 1])
            values[at - start : end - start] = self._part(number, at - self._starts[number], end - at)
            at = end
        return values

    def locate(self, index: int) -> tuple[Path, int]:
        """The file of an entry, and its number there."""
        number = bisect_right(self._starts, index) - 1
        return self.folder / self.shards[number].file, index - self._starts[number]

    def _part(self, number: int, first: int, count: int) -> np.ndarray:
        """Entries of one file."""
        path = self.folder / self.shards[number].file
        part = np.empty(count, dtype=self.dtype)
        with read_errors(path):
            if number not in self._files:
                self._files[number] = path.open("rb")
            self._files[number].seek(first * self.dtype.itemsize)
            read = self._files[number].readinto(part.data.cast("B"))  # type: ignore[attr-defined]
        if read != part.nbytes:
            raise DataError(f"{path} ends before entry {first + count:,}: it was cut short", prepare_again(self.folder))
        return part
