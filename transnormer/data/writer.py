"""Writing a token store so that it exists whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from transnormer.data import manifest as schema
from transnormer.errors import ConfigError, DataError, DiskError

MAX_SHARD_TOKENS = 2**27
TOKENIZER_FOLDER = "tokenizer"


class StoreWriter:
    """Context manager: shards go into a hidden sibling folder, which is renamed to `path` once all is on disk.

    `tokenizer` is saved with the store and gives the vocabulary size; without one, pass `vocab_size`. Should the body
    raise, or the process die, nothing appears at `path`.
    """

    def __init__(
        self,
        path: str | Path,
        tokenizer: Any = None,
        meta: dict[str, Any] | None = None,
        vocab_size: int | None = None,
        shard_tokens: int = MAX_SHARD_TOKENS,
    ) -> None:
        if tokenizer is None and vocab_size is None:
            raise ValueError("a StoreWriter needs a tokenizer or a vocab_size")
        self.path = Path(path)
        self.tokenizer = tokenizer
        self.meta = dict(meta or {})
        self.vocab_size = vocab_size or len(tokenizer)
        self.shard_tokens = shard_tokens
        self._dtype = np.dtype(schema.dtype_for(self.vocab_size)).newbyteorder("<")
        self._splits: dict[str, _SplitWriter] = {}

    def __enter__(self) -> StoreWriter:
        require_free(self.path)
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            prefix = partial_prefix(self.path)
            self._partial = Path(tempfile.mkdtemp(prefix=prefix, dir=self.path.parent))
            self._partial.chmod(0o755)  # mkdtemp's 0700 would keep a shared store private
        return self

    def append(self, split: str, ids: np.ndarray, num_bytes: int = 0, num_words: int = 0) -> None:
        """Adds tokens, and the bytes and words of source text they stand for, to the end of a split."""
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise DataError(f"'{split}' got ids {ids.min()} .. {ids.max()} outside the vocabulary of {self.vocab_size}")
        with disk_errors(self.path):
            if split not in self._splits:
                self._splits[split] = _SplitWriter(self._partial, split, self._dtype, self.shard_tokens)
            self._splits[split].append(ids)
        self._splits[split].num_bytes += num_bytes
        self._splits[split].num_words += num_words

    def tokens(self, split: str) -> int:
        """Tokens appended to a split so far."""
        return self._splits[split].num_tokens if split in self._splits else 0

    def words(self, split: str) -> int:
        """Words counted in a split so far."""
        return self._splits[split].num_words if split in self._splits else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with disk_errors(self.path):
                    self._commit()
        finally:
            for split in self._splits.values():
                split.close()
            if self._partial.exists():
                shutil.rmtree(self._partial)

    def _commit(self) -> None:
        manifest = schema.Manifest(
            dtype=schema.dtype_for(self.vocab_size),
            vocab_size=self.vocab_size,
            splits={name: split.finish() for name, split in self._splits.items()},
            tokenizer=self._save_tokenizer(),
            meta=self.meta,
        )
        with (self._partial / schema.FILE_NAME).open("w", encoding="utf-8") as file:
            file.write(schema.to_json(manifest))
            _flush(file)
        _sync_folder(self._partial)
        try:
            self._partial.rename(self.path)
        except OSError as problem:
            if problem.errno in (errno.ENOTEMPTY, errno.EEXIST):
                require_free(self.path)  # it appeared while this one was being written
            raise
        _sync_folder(self.path.parent)

    def _save_tokenizer(self) -> list[schema.TokenizerFile]:
        if self.tokenizer is None:
            return []
        folder = self._partial / TOKENIZER_FOLDER
        self.tokenizer.save_pretrained(folder)
        saved = []
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                os.fsync(file.fileno())
            name = f"{TOKENIZER_FOLDER}/{path.name}"
            saved.append(schema.TokenizerFile(file=name, size=path.stat().st_size, sha256=sha256))
        _sync_folder(folder)
        return saved


class _SplitWriter:
    """The open shard of one split, and the finished ones before it."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype, shard_tokens: int) -> None:
        self.folder, self.name, self.dtype, self.shard_tokens = folder, name, dtype, shard_tokens
        self.num_tokens = self.num_bytes = self.num_words = 0
        self._shards: list[schema.Shard] = []
        self._start_shard()

    def _start_shard(self) -> None:
        self._file_name = f"{self.name}-{len(self._shards):05d}.bin"
        self._file: BinaryIO = (self.folder / self._file_name).open("wb")
        self._sha256 = hashlib.sha256()
        self._tokens = 0

    def append(self, ids: np.ndarray) -> None:
        while len(ids):
            if self._tokens == self.shard_tokens:
                self._end_shard()
                self._start_shard()
            fitting, ids = np.split(ids, [self.shard_tokens - self._tokens])
            data = fitting.astype(self.dtype).tobytes()
            self._file.write(data)
            self._sha256.update(data)
            self._tokens += len(fitting)
            self.num_tokens += len(fitting)

    def _end_shard(self) -> None:
        _flush(self._file)
        self._file.close()
        self._shards.append(
            schema.Shard(file=self._file_name, tokens=self._tokens, sha256=self._sha256.hexdigest()),
        )

    def finish(self) -> schema.Split:
        self._end_shard()
        return schema.Split(tokens=self.num_tokens, bytes=self.num_bytes, words=self.num_words, shards=self._shards)

    def close(self) -> None:
        self._file.close()


def require_free(path: Path) -> None:
    """A store never replaces anything: `path` must not exist, or be an empty folder."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists():
        raise ConfigError(f"{path} exists already", "remove it or choose another --out")


def partial_prefix(path: Path) -> str:
    """How the names of unfinished stores for `path` begin."""
    return f".{path.name}.partial-"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns the operating system's refusal to write into a DiskError."""
    try:
        yield
    except OSError as problem:
        hint = "free some space or choose another folder"
        raise DiskError(f"cannot write the store {path}: {problem.strerror or problem}", hint) from problem


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
