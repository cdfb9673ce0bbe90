"""Writing a token store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from transnormer.data import manifest as schema
from transnormer.data.arrays import MAX_ENTRIES, ArrayWriter
from transnormer.data.store_folder import StoreFolder
from transnormer.data.stored_tokenizer import save_tokenizer
from transnormer.errors import DataError


class Counts(NamedTuple):
    """What has been written of a split (see `store.SplitInfo`)."""

    tokens: int = 0
    bytes: int = 0
    words: int = 0


class TokenFiles:
    """The shards of all splits in a folder; those `kept` of an earlier writer stay up to their counts."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        shard_tokens: int = MAX_ENTRIES,
        kept: Mapping[str, Counts] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.counts: dict[str, Counts] = dict(kept or {})
        self._folder, self._shard_tokens = folder, shard_tokens
        self._dtype = np.dtype(schema.dtype_for(vocab_size)).newbyteorder("<")
        self._splits = {name: self._open(name, counts.tokens) for name, counts in self.counts.items()}

    def append(self, split: str, ids: np.ndarray, num_bytes: int = 0, num_words: int = 0) -> None:
        """Adds tokens, and the bytes and words of source text they stand for, to the end of a split."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise DataError(f"'{split}' got ids {ids.min()} .. {ids.max()} outside the vocabulary of {self.vocab_size}")
        if split not in self._splits:
            self._splits[split] = self._open(split)
        self._splits[split].append(ids)
        before = self.counts.get(split, Counts())
        self.counts[split] = Counts(before.tokens + len(ids), before.bytes + num_bytes, before.words + num_words)

    def sync(self) -> None:
        """Waits until all that was appended is on the disk."""
        for split in self._splits.values():
            split.sync()

    def finish(self, tokenizer: list[schema.TokenizerFile], meta: dict[str, Any]) -> schema.Manifest:
        """Completes all files and describes them."""
        splits = {
            name: schema.Split(**self.counts[name]._asdict(), shards=split.finish())
            for name, split in self._splits.items()
        }
        dtype = schema.dtype_for(self.vocab_size)
        return schema.Manifest(dtype=dtype, vocab_size=self.vocab_size, splits=splits, tokenizer=tokenizer, meta=meta)

    def close(self) -> None:
        """Lets go of the open files, finished or not."""
        for split in self._splits.values():
            split.close()

    def _open(self, split: str, kept: int = 0) -> ArrayWriter:
        return ArrayWriter(self._folder, split, self._dtype, self._shard_tokens, kept)


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

    def __enter__(self) -> Self:
        super().__enter__()
        self._files = TokenFiles(self.partial, self.vocab_size, self.shard_tokens)
        return self

    def append(self, split: str, ids: np.ndarray, num_bytes: int = 0, num_words: int = 0) -> None:
        """Adds tokens, and the bytes and words of source text they stand for, to the end of a split."""
        with self.writing():
            self._files.append(split, ids, num_bytes, num_words)

    def finish(self) -> schema.Manifest:
        return self._files.finish(save_tokenizer(self.tokenizer, self.partial), self.meta)

    def close(self) -> None:
        self._files.close()
