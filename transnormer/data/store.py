"""The token store: memory-mapped shards of token ids, their tokenizer, and a hashed manifest (see `manifest`).

STORE/manifest.json          written last; a folder without it is not a store
STORE/train-00000.bin ...    flat little-endian ids, at most 2^27 per file
STORE/tokenizer/             a Hugging Face tokenizer folder
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from transnormer.data.manifest import Manifest, Shard, read_manifest
from transnormer.data.writer import TOKENIZER_FOLDER, StoreWriter
from transnormer.errors import DataError, did_you_mean

__all__ = ["SplitInfo", "StoreWriter", "TokenSplit", "TokenStore"]


@dataclass(frozen=True)
class SplitInfo:
    """Sizes of one split.

    tokens: ids in the stream, end-of-document tokens included.
    bytes:  bytes of the source text that the tokens stand for (its UTF-8 form; for enwik8 the raw file). An added
            token, such as an end of document, stands for no byte.
    words:  whitespace-separated words of the source text; for WikiText, as is the custom there, also one per line end.
    """

    tokens: int
    bytes: int
    words: int


class TokenStore:
    """A store opened for reading. `open` checks the structure, `verify` every byte, and every read its ids."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.vocab_size = manifest.vocab_size
        self.meta: dict[str, Any] = manifest.meta
        self.digest = manifest.digest
        self.tokenizer_path = path / TOKENIZER_FOLDER if manifest.tokenizer else None
        self._manifest = manifest

    @classmethod
    def open(cls, path: str | Path) -> TokenStore:
        """Opens a store after a cheap check: the manifest is sound and every file is there with its recorded size."""
        path = Path(path)
        store = cls(path, read_manifest(path))
        for file, size, _ in store._files():
            store._check_size(file, size)
        return store

    def verify(self) -> None:
        """Reads every file and compares its sha256; a DataError names the first that differs."""
        for file, size, sha256 in self._files():
            self._check_size(file, size)
            with (self.path / file).open("rb") as stream:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
            if actual != sha256:
                raise DataError(
                    f"{self.path / file} was altered: its sha256 is {actual[:12]}..., not {sha256[:12]}... as recorded",
                    self._again,
                )

    @property
    def splits(self) -> dict[str, SplitInfo]:
        return {name: SplitInfo(s.tokens, s.bytes, s.words) for name, s in self._manifest.splits.items()}

    def split(self, name: str) -> TokenSplit:
        """One split for reading, e.g. 'train', 'valid', 'test'."""
        if name not in self._manifest.splits:
            raise DataError(f"{self.path} has no '{name}' split", did_you_mean(name, self._manifest.splits))
        return TokenSplit(self, name, self._manifest)

    @property
    def _again(self) -> str:
        return f"remove {self.path} and prepare it again"

    def _files(self) -> list[tuple[str, int, str]]:
        """(file, size in bytes, sha256) of all files but the manifest."""
        width = self._manifest.numpy_dtype.itemsize
        shards = [
            (s.file, s.tokens * width, s.sha256) for split in self._manifest.splits.values() for s in split.shards
        ]
        return shards + [(t.file, t.size, t.sha256) for t in self._manifest.tokenizer]

    def _check_size(self, file: str, size: int) -> None:
        path = self.path / file
        if not path.is_file():
            raise DataError(f"{path} is missing", self._again)
        if path.stat().st_size != size:
            raise DataError(f"{path} has {path.stat().st_size:,} bytes, not {size:,} as recorded", self._again)


class TokenSplit:
    """The token stream of one split, as if it were one array; shards are mapped when first read."""

    def __init__(self, store: TokenStore, name: str, manifest: Manifest) -> None:
        self.name = name
        self.info = store.splits[name]
        self.vocab_size = manifest.vocab_size
        self._store = store
        self._shards: list[Shard] = manifest.splits[name].shards
        self._dtype = manifest.numpy_dtype
        self._starts = [0, *accumulate(shard.tokens for shard in self._shards)]

    def __len__(self) -> int:
        return self.info.tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start .. stop - 1 as int64, across shards; a DataError names an id outside the vocabulary."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start}:{stop} of '{self.name}', which has {len(self)}")
        ids = np.empty(stop - start, dtype=np.int64)
        at = start
        while at < stop:
            number = bisect_right(self._starts, at) - 1
            end = min(stop, self._starts[number + 1])
            ids[at - start : end - start] = self._maps[number][at - self._starts[number] : end - self._starts[number]]
            at = end
        if len(ids) and ids.max() >= self.vocab_size:
            self._report_outside_id(ids, start)
        return ids

    @cached_property
    def _maps(self) -> list[np.ndarray]:
        # An empty file cannot be mapped; such a shard is never indexed, but it keeps its place in the list.
        return [
            np.memmap(self._store.path / shard.file, dtype=self._dtype, mode="r")
            if shard.tokens
            else np.empty(0, self._dtype)
            for shard in self._shards
        ]

    def _report_outside_id(self, ids: np.ndarray, start: int) -> None:
        first = int(np.argmax(ids >= self.vocab_size))
        number = bisect_right(self._starts, start + first) - 1
        offset = start + first - self._starts[number]
        raise DataError(
            f"{self._store.path / self._shards[number].file}: token {offset} is {ids[first]}, "
            f"outside the vocabulary of {self.vocab_size}",
            self._store._again,
        )
