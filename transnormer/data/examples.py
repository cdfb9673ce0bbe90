"""The example store: labelled sequences, or pairs of them, in memory-mapped files with a hashed manifest.

STORE/manifest.json              written last; a folder without it is not a store (see `example_manifest`)
STORE/train-ids-00000.bin ...    the sequences one after the other
STORE/train-lengths-00000.bin    the length of each
STORE/train-labels-00000.bin     the label of each example
STORE/tokenizer/                 a Hugging Face tokenizer folder, where the ids were made of text
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from transnormer.data.arrays import StoredArray
from transnormer.data.example_manifest import LABELS, LENGTHS, ExampleManifest
from transnormer.data.manifest import check_hashes, marks_of, prepare_again, read_manifest, require_unchanged
from transnormer.data.stored_tokenizer import tokenizer_in
from transnormer.errors import DataError, did_you_mean


class ExampleStore:
    """A store opened for reading. `open` checks the structure, `verify` every byte, and every read its numbers."""

    def __init__(self, path: Path, manifest: ExampleManifest) -> None:
        self.path = path
        self.task = manifest.task
        self.vocab_size = manifest.vocab_size
        self.num_labels = manifest.num_labels
        self.max_length = manifest.max_length
        self.sequences = manifest.sequences
        self.meta: dict[str, Any] = manifest.meta
        self.digest = manifest.digest
        self.tokenizer_path = tokenizer_in(path, manifest.tokenizer)
        self._manifest = manifest
        self._marks = marks_of(path, manifest.files())

    @classmethod
    def open(cls, path: str | Path) -> ExampleStore:
        """Opens a store after a cheap check: the manifest is sound and every file is there with its recorded size."""
        return cls(Path(path), read_manifest(Path(path), ExampleManifest))

    def verify(self) -> None:
        """Reads every file and compares its sha256; a DataError names the first that differs."""
        check_hashes(self.path, self._manifest)

    def require_unchanged(self) -> None:
        """A DataError names the first file that somebody has written to since the store was opened."""
        require_unchanged(self.path, self._marks)

    @property
    def splits(self) -> list[str]:
        """Names of the splits."""
        return list(self._manifest.splits)

    def split(self, name: str) -> ExampleSplit:
        """One split for reading, e.g. 'train', 'valid', 'test'."""
        if name not in self._manifest.splits:
            raise DataError(f"{self.path} has no '{name}' split", did_you_mean(name, self._manifest.splits))
        return ExampleSplit(self.path, name, self._manifest)


class ExampleSplit:
    """The examples of one split by number. Labels and lengths are in memory, sequences are read from their files."""

    def __init__(self, path: Path, name: str, manifest: ExampleManifest) -> None:
        self.name = name
        self._path, self._manifest = path, manifest
        self._stored = manifest.splits[name]
        self._ids = StoredArray(path, self._stored.ids, manifest.numpy_dtype)

    def __len__(self) -> int:
        return self._stored.examples

    @property
    def tokens(self) -> int:
        """Tokens in all sequences together."""
        return self._stored.tokens

    @cached_property
    def labels(self) -> np.ndarray:
        """The label of each example: [N] int64."""
        stored = StoredArray(self._path, self._stored.labels, LABELS)
        labels = stored.read(0, len(self), np.int64)
        if len(outside := np.flatnonzero(labels >= self._manifest.num_labels)):
            file, index = stored.locate(int(outside[0]))
            self._damaged(
                f"{file}: label {index} is {labels[outside[0]]}, outside 0 .. {self._manifest.num_labels - 1}"
            )
        return labels

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of each sequence: [N, sequences] int64."""
        stored = StoredArray(self._path, self._stored.lengths, LENGTHS)
        lengths = stored.read(0, len(stored), np.int64)
        if len(outside := np.flatnonzero((lengths < 1) | (lengths > self._manifest.max_length))):
            file, index = stored.locate(int(outside[0]))
            self._damaged(f"{file}: length {index} is {lengths[outside[0]]}, outside 1 .. {self._manifest.max_length}")
        if lengths.sum() != self._stored.tokens:
            self._damaged(f"{self._path}: the lengths of '{self.name}' are not {self._stored.tokens:,} tokens in all")
        return lengths.reshape(len(self), self._manifest.sequences)

    def sequence(self, index: int, which: int = 0) -> np.ndarray:
        """The ids of an example, `which` of a pair; a DataError names an id outside the vocabulary."""
        number = index * self._manifest.sequences + which
        start, stop = self._bounds[number], self._bounds[number + 1]
        ids = self._ids.read(start, stop)
        if ids.max() >= self._manifest.vocab_size:
            first = int(np.argmax(ids >= self._manifest.vocab_size))
            file, offset = self._ids.locate(start + first)
            self._damaged(f"{file}: token {offset} is {ids[first]}, outside the vocabulary")
        return ids

    @cached_property
    def _bounds(self) -> list[int]:
        return [0, *np.cumsum(self.lengths).tolist()]

    def _damaged(self, message: str) -> None:
        raise DataError(message, prepare_again(self._path))


class Examples(Protocol):
    """Labelled sequences by number."""

    def __len__(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """[N]"""

    @property
    def lengths(self) -> np.ndarray:
        """[N, sequences]"""

    def sequence(self, index: int, which: int = 0) -> np.ndarray:
        """The ids of an example."""


class Joined:
    """Two splits as one, the second after the first."""

    def __init__(self, first: Examples, second: Examples) -> None:
        self._first, self._second = first, second
        self.labels = np.concatenate([first.labels, second.labels])
        self.lengths = np.concatenate([first.lengths, second.lengths])

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def sequence(self, index: int, which: int = 0) -> np.ndarray:
        if index < len(self._first):
            return self._first.sequence(index, which)
        return self._second.sequence(index - len(self._first), which)
