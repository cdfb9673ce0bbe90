"""Examples as tables on a device: a batch is gathered there by number, without the CPU.

All batches of a split are padded to one length, so that they have one shape; masks are real, so the padding changes no
loss and no score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from transnormer.data.examples import Examples, ExampleStore
from transnormer.tasks.contract import Batch, Feeds
from transnormer.tasks.padding import padded

if TYPE_CHECKING:
    from transnormer.tasks.classification import Classification

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Table:
    """One split: `ids` [N, sequences, L] in their smallest dtype, `lengths` [N, sequences], `labels` [N]."""

    ids: Tensor
    lengths: Tensor
    labels: Tensor


class ResidentExamples(Feeds):
    """What a training step and an evaluation need of a classification task, with all data on one device."""

    def __init__(self, task: Classification, device: torch.device) -> None:
        super().__init__(task)
        self._examples, self._device = task, device
        self._tables: dict[str, Table] = {}
        self._lengths = task.examples("train").lengths.sum(axis=1)

    def feed(self, positions: range) -> Batch:
        return {"rows": torch.from_numpy(self._examples.rows(positions))}

    def targets(self, feed: Batch) -> int:
        return self._examples.targets_per_example * len(feed["rows"])

    def tokens(self, feed: Batch) -> int:
        return int(self._lengths[feed["rows"].numpy()].sum())

    def batch(self, feed: Batch, split: str = "train") -> Batch:
        """The examples of these numbers; `feed` and the result are on the device."""
        table, rows = self._table(split), feed["rows"]
        positions = torch.arange(table.ids.shape[-1], device=self._device)
        ids = table.ids[rows].long().unbind(dim=1)
        masks = (positions < table.lengths[rows].unsqueeze(-1)).unbind(dim=1)
        return self._examples.assemble(ids, masks, table.labels[rows])

    def load(self, split: str) -> None:
        self._table(split)

    def loss_sum(self, model: torch.nn.Module, feed: Batch) -> Tensor:
        return self._examples.loss_sum(model, self.batch(feed))

    def eval_feeds(self, split: str, size: int, rank: int, world_size: int) -> Iterator[Batch]:
        """All examples of an evaluation as batches of one size: the last is filled up with examples of weight zero."""
        chosen = self._examples.chosen(split)[rank::world_size]
        size = min(size, max(len(chosen), 1))
        missing = -len(chosen) % size
        weights = np.concatenate([np.ones(len(chosen)), np.zeros(missing)]).astype(np.float32)
        chosen = np.pad(chosen, (0, missing), mode="edge")
        for start in range(0, len(chosen), size):
            part = slice(start, start + size)
            yield {"rows": torch.from_numpy(chosen[part]), "weights": torch.from_numpy(weights[part])}

    def score(self, model: torch.nn.Module, feed: Batch, split: str) -> Tensor:
        return self._examples.score(model, {**self.batch(feed, split), "weights": feed["weights"]})

    def _table(self, split: str) -> Table:
        if split not in self._tables:
            self._tables[split] = _table_of(
                self._examples.examples(split), self._examples.store, self._examples.width(split), self._device
            )
        return self._tables[split]


def _table_of(examples: Examples, store: ExampleStore, width: int, device: torch.device) -> Table:
    dtype = next(d for d in (torch.uint8, torch.int16, torch.int32) if store.vocab_size - 1 <= torch.iinfo(d).max)
    ids = torch.zeros(len(examples), store.sequences, width, dtype=dtype, device=device)
    for first in range(0, len(examples), _ROWS_AT_ONCE):
        rows = range(first, min(first + _ROWS_AT_ONCE, len(examples)))
        for which in range(store.sequences):
            part, _ = padded([examples.sequence(row, which) for row in rows], width)
            ids[rows.start : rows.stop, which] = part.to(dtype).to(device)
    lengths, labels = (torch.from_numpy(array).to(device) for array in (examples.lengths, examples.labels))
    return Table(ids, lengths, labels)
