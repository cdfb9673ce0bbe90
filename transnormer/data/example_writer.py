"""Writing a store of labelled examples."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np

from transnormer.data.arrays import ArrayWriter
from transnormer.data.example_manifest import LABELS, LENGTHS, ExampleManifest, ExampleShards, ids_dtype
from transnormer.data.manifest import FILE_NAME, to_json
from transnormer.data.stored_tokenizer import save_tokenizer
from transnormer.errors import DataError
from transnormer.files import disk_errors, new_folder, write_text
from transnormer.signals import sigterm_raises

_HINT = "free some space or choose another folder"
WAITING = 1024  # examples that are written to the files together


@dataclass(frozen=True)
class Form:
    """What all examples of a store have in common; `tokenizer`, where text was made ids of, is saved with them."""

    task: str
    vocab_size: int
    num_labels: int
    max_length: int
    sequences: Literal[1, 2] = 1
    tokenizer: Any = None


class ExampleWriter:
    """Appends examples to splits; the store appears at `path` when the `with` block ends, whole or not at all.

    Should the block raise, or the process die, nothing appears there. SIGTERM raises `Terminated` in the block.
    """

    def __init__(self, path: str | Path, form: Form, meta: dict[str, Any] | None = None) -> None:
        self.path, self.form, self.meta = Path(path), form, dict(meta or {})
        self._splits: dict[str, _SplitWriter] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(sigterm_raises())
            self._folder = stack.enter_context(new_folder(self.path, _HINT))
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack, disk_errors(self.path, hint=_HINT):
            write_text(self._folder / FILE_NAME, to_json(self._finish()), _HINT)

    def append(self, split: str, sequences: Sequence[np.ndarray], label: int) -> None:
        """Adds one example: its sequence, or the two of a pair, and its label."""
        form = self.form
        if len(sequences) != form.sequences:
            raise ValueError(f"an example of {form.task} has {form.sequences} sequences, got {len(sequences)}")
        for ids in sequences:
            if not 0 < len(ids) <= form.max_length:
                raise DataError(
                    f"'{split}' got a sequence of {len(ids)} tokens; {form.task} has 1 .. {form.max_length}"
                )
            if not 0 <= int(ids.min()) <= int(ids.max()) < form.vocab_size:
                raise DataError(f"'{split}' got ids {ids.min()} .. {ids.max()} outside the vocabulary")
        if not 0 <= label < form.num_labels:
            raise DataError(f"'{split}' got the label {label}, not 0 .. {form.num_labels - 1}")
        with disk_errors(self.path, hint=_HINT):
            if split not in self._splits:
                dtype = np.dtype(ids_dtype(form.vocab_size)).newbyteorder("<")
                self._splits[split] = _SplitWriter(self._folder, split, dtype)
            self._splits[split].append(sequences, label)

    def _finish(self) -> ExampleManifest:
        """Completes all files and describes them."""
        fields = {**vars(self.form), "tokenizer": save_tokenizer(self.form.tokenizer, self._folder)}
        return ExampleManifest(
            **fields,
            dtype=ids_dtype(self.form.vocab_size),
            splits={name: split.finish() for name, split in self._splits.items()},
            meta=self.meta,
        )

    def _close(self) -> None:
        for split in self._splits.values():
            split.close()


class _SplitWriter:
    """The three arrays of one split, and the examples that wait to be written."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype) -> None:
        self.examples = 0
        self._ids = ArrayWriter(folder, f"{name}-ids", dtype)
        self._lengths = ArrayWriter(folder, f"{name}-lengths", LENGTHS)
        self._labels = ArrayWriter(folder, f"{name}-labels", LABELS)
        self._waiting: list[np.ndarray] = []
        self._waiting_labels: list[int] = []

    def append(self, sequences: Sequence[np.ndarray], label: int) -> None:
        self._waiting += sequences
        self._waiting_labels.append(label)
        self.examples += 1
        if len(self._waiting_labels) == WAITING:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._ids.append(np.concatenate(self._waiting))
            self._lengths.append(np.array([len(ids) for ids in self._waiting]))
            self._labels.append(np.array(self._waiting_labels))
        self._waiting, self._waiting_labels = [], []

    def finish(self) -> ExampleShards:
        self._write()
        return ExampleShards(
            examples=self.examples,
            tokens=self._ids.entries,
            ids=self._ids.finish(),
            lengths=self._lengths.finish(),
            labels=self._labels.finish(),
        )

    def close(self) -> None:
        for array in (self._ids, self._lengths, self._labels):
            array.close()
