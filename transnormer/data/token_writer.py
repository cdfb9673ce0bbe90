"""Writing a token store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from transnormer.data import manifest as schema
from transnormer.data.arrays import MAX_ENTRIES, ArrayWriter
from transnormer.data.store_folder import StoreFolder
from transnormer.data.stored_tokenizer import save_tokenizer
from transnormer.errors import DataError


class StoreWriter(StoreFolder):
    """Appends tokens to splits; the store appears at `path` when the `with` block ends, whole or not at all.

    `tokenizer` is saved with the store and gives the vocabulary size; without one, pass `vocab_size`.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any = None,
        meta: dict[str, Any] | None = None,
        vocab_size: int | None = None,
        shard_tokens: int = MAX_ENTRIES,
    ) -> None:
        if tokenizer is None and vocab_size is None:
            raise ValueError("a StoreWriter needs a tokenizer or a vocab_size")
        super().__init__(path)
        self.tokenizer = tokenizer
        self.meta = dict(meta or {})
        self.vocab_size = vocab_size or len(tokenizer)
        self.shard_tokens = shard_tokens
        self._dtype = np.dtype(schema.dtype_for(self.vocab_size)).newbyteorder("<")
        self._splits: dict[str, ArrayWriter] = {}
        self._bytes: dict[str, int] = {}
        self._words: dict[str, int] = {}

    def append(self, split: str, ids: np.ndarray, num_bytes: int = 0, num_words: int = 0) -> None:
        """Adds tokens, and the bytes and words of source text they stand for, to the end of a split."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise DataError(f"'{split}' got ids {ids.min()} .. {ids.max()} outside the vocabulary of {self.vocab_size}")
        with self.writing():
            if split not in self._splits:
                self._splits[split] = ArrayWriter(self.partial, split, self._dtype, self.shard_tokens)
            self._splits[split].append(ids)
        self._bytes[split] = self._bytes.get(split, 0) + num_bytes
        self._words[split] = self.words(split) + num_words

    def tokens(self, split: str) -> int:
        """Tokens appended to a split so far."""
        return self._splits[split].entries if split in self._splits else 0

    def words(self, split: str) -> int:
        """Words counted in a split so far."""
        return self._words.get(split, 0)

    def finish(self) -> schema.Manifest:
        splits = {
            name: schema.Split(
                tokens=split.entries, bytes=self._bytes[name], words=self._words[name], shards=split.finish()
            )
            for name, split in self._splits.items()
        }
        return schema.Manifest(
            dtype=schema.dtype_for(self.vocab_size),
            vocab_size=self.vocab_size,
            splits=splits,
            tokenizer=save_tokenizer(self.tokenizer, self.partial),
            meta=self.meta,
        )

    def close(self) -> None:
        for split in self._splits.values():
            split.close()
