"""What every task offers to the training loop: samples by position, a loss, and a score made of sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.open_store import Store
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.tasks.registry import task_entry

Batch = dict[str, Tensor]


class Task(ABC):
    """What is learned and how it is scored.

    A batch is a pure function of the seed and of positions in an endless sequence of samples, so a run resumes from an
    integer and any number of processes can share the positions among them. Losses and scores are sums, and `metrics`
    divides at the very end, so neither micro-batches nor processes of different size change a result.
    """

    name: str
    store: Store
    sums: ClassVar[tuple[str, ...]]  # what `score` adds up
    # A split that is scored once, when a run ends, with the checkpoint that the validation split chose.
    test_split: str | None = None

    @abstractmethod
    def __init__(self, config: RunConfig) -> None:
        """Opens the data, preparing it first where the config names a corpus instead of a store."""

    @classmethod
    @abstractmethod
    def find_data(cls, config: RunConfig) -> dict[str, Any]:
        """What the store would say of its origin, were the data of a config prepared; prepares nothing.

        Raises what preparing them would, for the config's keys and its source files.
        """

    @property
    def primary_metric(self) -> str:
        """The metric by which the best checkpoint is chosen."""
        return task_entry(self.name).primary_metric

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return task_entry(self.name).higher_is_better

    @classmethod
    def settled(cls, config: RunConfig) -> RunConfig:
        """The config with all that its data decide, such as how many steps an epoch is."""
        return config

    def examples_scored(self, split: str) -> int | None:
        """How many examples an evaluation of a split counts, of which an accuracy is the share; None for text."""
        return None

    @property
    @abstractmethod
    def protocol(self) -> str:
        """One sentence: how this task is scored."""

    @property
    @abstractmethod
    def num_train_samples(self) -> int:
        """Samples in one epoch."""

    @abstractmethod
    def build_model(self) -> TransNormerPreTrainedModel:
        """A fresh model for this task; the caller seeds torch."""

    @abstractmethod
    def train_batch(self, positions: Sequence[int]) -> Batch:
        """The training samples at these positions, on the CPU."""

    @abstractmethod
    def targets_in(self, batch: Batch) -> int:
        """Number of predictions that are scored."""

    @abstractmethod
    def tokens_in(self, batch: Batch) -> int:
        """Number of tokens that are processed."""

    @abstractmethod
    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """Loss summed over the targets, in float32."""

    @abstractmethod
    def eval_batches(self, split: str, size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """This rank's share of what an evaluation of a split scores, `size` samples at a time."""

    @abstractmethod
    def score(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """The numbers named in `sums`, float64, added up over a batch."""

    def beside(self, split: str) -> Sequence[str]:
        """Splits that are scored whenever this one is; their sums have their name and a dot before their own."""
        return ()

    def complete(self, split: str, sums: dict[str, float]) -> dict[str, float]:
        """The sums of a share of a split with those that follow from them, such as bytes."""
        return sums

    @abstractmethod
    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        """The score from sums over the whole split; holds `primary_metric`."""

    def facts(self, split: str, sums: dict[str, float]) -> dict[str, Any]:
        """What the result of an evaluation says beside its metrics, such as what they were divided by."""
        return {}

    def feeds(self, device: torch.device) -> Feeds:
        """How batches of one shape reach a step that is compiled or recorded."""
        return Feeds(self)

    @abstractmethod
    def save_assets(self, folder: str | Path) -> None:
        """Puts what a model folder needs besides weights and config, such as the tokenizer, into it."""


class Feeds:
    """Batches for a step and an evaluation: what is sent to the device, and what it becomes there.

    Here a whole batch is sent. A task whose data lies on the device sends numbers of samples instead.
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of the numbers that `score` gives."""
        return self._task.sums

    def feed(self, positions: range) -> Batch:
        """What is sent for the training samples at these positions, on the CPU."""
        return self._task.train_batch(positions)

    def targets(self, feed: Batch) -> int:
        """Number of predictions that are scored in a training batch."""
        return self._task.targets_in(feed)

    def tokens(self, feed: Batch) -> int:
        """Number of tokens that are processed in a training batch, padding not counted."""
        return self._task.tokens_in(feed)

    def load(self, split: str) -> None:
        """Bring to the device what is needed there of a split; a batch that is sent needs nothing."""

    def loss_sum(self, model: torch.nn.Module, feed: Batch) -> Tensor:
        """The loss of a training batch, summed over its targets; `feed` is on the device."""
        return self._task.loss_sum(model, feed)

    def eval_feeds(self, split: str, size: int, rank: int, world_size: int) -> Iterator[Batch]:
        """A rank's share of an evaluation as feeds of at most `size` samples, on the CPU."""
        return self._task.eval_batches(split, size, rank, world_size)

    def score(self, model: torch.nn.Module, feed: Batch, split: str) -> Tensor:
        """The sums of one feed of an evaluation; `feed` is on the device."""
        return self._task.score(model, feed)

    def complete(self, split: str, sums: dict[str, float]) -> dict[str, float]:
        """See `Task.complete`."""
        return self._task.complete(split, sums)
