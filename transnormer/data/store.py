"""The token store: shards of token ids, their tokenizer, and a hashed manifest (see `manifest`).

STORE/manifest.json          written last; a folder without it is not a store
STORE/train-00000.bin ...    flat little-endian ids, at most 2^27 per file
STORE/tokenizer/             a Hugging Face tokenizer folder
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transnormer.data.arrays import StoredArray
from transnormer.data.manifest import (
    Manifest,
    check_hashes,
    marks_of,
    prepare_again,
    read_manifest,
    require_unchanged,
)
from transnormer.data.stored_tokenizer import tokenizer_in
from transnormer.errors import DataError, did_you_mean


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
        self.tokenizer_path = tokenizer_in(path, manifest.tokenizer)
        self._manifest = manifest
        self._marks = marks_of(path, manifest.files())

    @classmethod
    def open(cls, path: str | Path) -> TokenStore:
        """Opens a store after a cheap check: the manifest is sound and every file is there with its recorded size."""
        return cls(Path(path), read_manifest(Path(path), Manifest))

    def verify(self) -> None:
        """Reads every file and compares its sha256; a DataError names the first that differs."""
        check_hashes(self.path, self._manifest)

    def require_unchanged(self) -> None:
        """A DataError names the first file that somebody has written to since the store was opened."""
        require_unchanged(self.path, self._marks)

    @property
    def splits(self) -> dict[str, SplitInfo]:
        return {name: SplitInfo(s.tokens, s.bytes, s.words) for name, s in self._manifest.splits.items()}

    def split(self, name: str) -> TokenSplit:
        """One split for reading, e.g. 'train', 'valid', 'test'."""
        if name not in self._manifest.splits:
            raise DataError(f"{self.path} has no '{name}' split", did_you_mean(name, self._manifest.splits))
        return TokenSplit(self, name, self._manifest)


class TokenSplit:
    """The token stream of one split, as if it were one array; shards are opened when first read."""

    def __init__(self, store: TokenStore, name: str, manifest: Manifest) -> None:
        self.name = name
        self.info = store.splits[name]
        self.vocab_size = manifest.vocab_size
        self._store = store
        self._ids = StoredArray(store.path, manifest.splits[name].shards, manifest.numpy_dtype)

    def __len__(self) -> int:
        return self.info.tokens

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens start .. stop - 1 as int64, across shards; a DataError names an id outside the vocabulary."""
        ids = self._ids.read(start, stop, np.int64)
        if len(ids) and ids.max() >= self.vocab_size:
            first = int(np.argmax(ids >= self.vocab_size))
            file, offset = self._ids.locate(start + first)
            raise DataError(
                f"{file}: token {offset} is {ids[first]}, outside the vocabulary of {self.vocab_size}",
                prepare_again(self._store.path),
            )
        return ids
