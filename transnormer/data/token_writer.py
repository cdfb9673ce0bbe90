"""Writing the shards of a token store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transnormer.data import manifest as schema
from transnormer.data.arrays import MAX_ENTRIES, ArrayWriter
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
