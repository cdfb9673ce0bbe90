"""What tasks share that classify the examples of a store: batches, the loss, and a score made of sums."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.cache import cached_examples
from transnormer.data.example_plan import Plan
from transnormer.data.examples import Examples, ExampleStore
from transnormer.data.sampling import EpochSampler
from transnormer.errors import ConfigError
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.config import TransNormerConfig
from transnormer.models.heads import TransNormerForPairClassification, TransNormerForSequenceClassification
from transnormer.models.presets import model_config
from transnormer.tasks.contract import Batch, Task
from transnormer.tasks.padding import padded
from transnormer.tasks.resident import ResidentExamples


class Classification(Task):
    """Batches are padded to their longest sequence; masks are real, so padding changes no score."""

    store: ExampleStore
    sums: tuple[str, ...] = ("loss", "examples", "correct")  # type: ignore[misc]
    right_padded = True  # real tokens come first in every row

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.name = config.task
        self.store = self.open_store(config)
        self._train = self.examples("train")
        self._sampler = EpochSampler(len(self._train), config.seed)

    @classmethod
    @abstractmethod
    def plan(cls, config: RunConfig) -> Plan:
        """What decides the store of a config that names none."""

    @classmethod
    def find_data(cls, config: RunConfig) -> dict[str, Any]:
        return cls.plan(config).meta

    @classmethod
    def open_store(cls, config: RunConfig) -> ExampleStore:
        """The store a config names, or the task's own; every byte is checked against the recorded hashes."""
        store = ExampleStore.open(config.data.store or cached_examples(cls.plan(config)))
        if store.task != config.task:
            raise ConfigError(
                f"data.store: {store.path} was prepared for {store.task}, the task is {config.task}",
                hint=f"give its own, or make it: `{cls.preparation(config.task)}`",
            )
        store.verify()
        return store

    @classmethod
    @abstractmethod
    def preparation(cls, name: str) -> str:
        """The command that prepares the store of a task."""

    @property
    def num_train_samples(self) -> int:
        return len(self._train)

    def examples(self, split: str) -> Examples:
        """The examples of a split."""
        return self.store.split(split)

    def width(self, split: str) -> int:
        """The length that all batches of a split have where they must have one shape."""
        return self.store.max_length

    @property
    def targets_per_example(self) -> int:
        """Predictions of one example that are scored."""
        return 1

    @property
    def positions(self) -> int:
        """The length of the longest sequence that a model must be able to read."""
        return self.store.max_length

    @property
    def model_fields(self) -> dict[str, Any]:
        """What the task changes of a model, below what the config does."""
        return {}

    @abstractmethod
    def vocab_size(self, model: TransNormerConfig) -> int:
        """Rows of the embedding, for a model that would have its own number of them."""

    def build_model(self) -> TransNormerPreTrainedModel:
        pair = self.store.sequences == 2
        head = TransNormerForPairClassification if pair else TransNormerForSequenceClassification
        return head(self.model_config())

    def model_config(self) -> TransNormerConfig:
        """The preset, what the config changes of it, and what the task requires."""
        section = self.config.model
        fields = {"causal": False, "num_labels": self.store.num_labels, **self.model_fields, **section.changes()}
        size = model_config(section, **fields)
        positions = self.positions
        if section.max_position_embeddings is not None and section.max_position_embeddings < positions:
            raise ConfigError(
                f"model.max_position_embeddings ({section.max_position_embeddings}) is shorter than the sequences of "
                f"{self.name}, which have up to {positions} tokens",
                hint="leave it out",
            )
        fields["max_position_embeddings"] = max(size.max_position_embeddings, positions)
        fields["vocab_size"] = self.vocab_size(size)
        return model_config(section, **fields)

    def train_batch(self, positions: Sequence[int]) -> Batch:
        return self.batch(self._train, [self._sampler.index(position)[1] for position in positions])

    def rows(self, positions: range) -> np.ndarray:
        """The numbers of the training examples at these positions."""
        return self._sampler.indices(positions.start, positions.stop)

    def feeds(self, device: torch.device) -> ResidentExamples:
        return ResidentExamples(self, device)

    def batch(self, examples: Examples, indices: Sequence[int]) -> Batch:
        """Examples by number, padded to the longest of them."""
        parts = [
            padded([examples.sequence(index, which) for index in indices]) for which in range(self.store.sequences)
        ]
        ids, masks = zip(*parts, strict=True)
        return self.assemble(ids, masks, torch.from_numpy(examples.labels[indices]))

    def assemble(self, ids: Sequence[Tensor], masks: Sequence[Tensor], labels: Tensor) -> Batch:
        """Inputs of the model, and `labels`, from one tensor of ids and one mask for each sequence of an example."""
        batch: Batch = {}
        for prefix, sequence, mask in zip(("", "pair_"), ids, masks, strict=False):
            batch[f"{prefix}input_ids"], batch[f"{prefix}attention_mask"] = sequence, mask
        batch["labels"] = labels
        return batch

    def targets_in(self, batch: Batch) -> int:
        return self.targets_per_example * len(batch["labels"])

    def tokens_in(self, batch: Batch) -> int:
        masks = [tensor for name, tensor in batch.items() if name.endswith("attention_mask")]
        return int(sum(mask.sum() for mask in masks)) if masks else batch["input_ids"].numel()

    def logits(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """One row of float32 scores per example."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return model(**inputs, right_padded=self.right_padded).logits.float()

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(self.logits(model, batch), batch["labels"], reduction="sum")

    def score(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """With `weights` [B] in the batch, an example counts as often as its weight says."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "weights"}
        logits, labels = self.logits(model, inputs), batch["labels"]
        weights = batch.get("weights", torch.ones_like(labels)).double()
        losses = F.cross_entropy(logits, labels, reduction="none")
        counts = self.counts(logits.argmax(dim=-1), labels, weights)
        return torch.cat([torch.stack([(losses * weights).sum(), weights.sum()]), counts])

    def counts(self, predicted: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The rest of `sums`, after the loss and the number of examples."""
        return ((predicted == labels) * weights).sum().unsqueeze(0)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["examples"], "accuracy": sums["correct"] / sums["examples"]}

    def chosen(self, split: str) -> np.ndarray:
        """The numbers of the examples that an evaluation of this split scores."""
        return np.arange(len(self.examples(split)))

    def examples_scored(self, split: str) -> int | None:
        return len(self.chosen(split))

    def eval_batches(self, split: str, size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Every world_size-th example; those of similar length together, so that little is padded."""
        examples = self.examples(split)
        for numbers in self.by_length(examples, self.chosen(split), size, rank, world_size):
            yield self.batch(examples, numbers)

    @staticmethod
    def by_length(
        examples: Examples, chosen: np.ndarray, size: int, rank: int = 0, world_size: int = 1
    ) -> Iterator[list[int]]:
        """A rank's share of these numbers, `size` examples of similar length at a time."""
        mine = chosen[np.argsort(examples.lengths[chosen].max(axis=1), kind="stable")][rank::world_size]
        for start in range(0, len(mine), size):
            yield mine[start : start + size].tolist()

    def origin_in_words(self) -> list[str]:
        """For the protocol: what of the data is not as published."""
        meta = self.store.meta
        parts = [f"at most {limit:,} examples per split"] if (limit := meta.get("limit")) else []
        for part, difference in meta.get("differs_from_published", {}).items():
            parts.append(f"not the published data: {part} has {difference}")
        return parts
