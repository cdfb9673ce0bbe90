"""The five tasks of the Long-Range Arena (Tay et al. 2021): classify long sequences, or pairs of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.cache import cached_examples
from transnormer.data.example_source import evenly
from transnormer.data.examples import ExampleStore
from transnormer.data.lra.prepare import plan
from transnormer.data.lra.spec import Spec, spec_of
from transnormer.data.sampling import EpochSampler
from transnormer.errors import ConfigError
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.config import TransNormerConfig
from transnormer.models.heads import TransNormerForPairClassification, TransNormerForSequenceClassification
from transnormer.models.presets import model_config
from transnormer.tasks.contract import Batch, Task
from transnormer.tasks.lra_protocol import Examples, LRAProtocol
from transnormer.tasks.padding import padded
from transnormer.tasks.resident import ResidentArena

log = logging.getLogger(__name__)

_POOLING = {
    "mean": "mean over real tokens",
    "padded_mean": "sum over real tokens divided by the padded length",
    "first": "classified by the first token",
    "last": "classified by the last token",
}


class LongRangeArena(Task):
    """Scored by accuracy: the share of examples whose class is found.

    The best checkpoint is chosen on the validation split: all of it, or `lra.valid_examples` evenly spaced examples.
    When a run ends, all of the test split is scored once with that checkpoint. Batches are padded to their longest
    sequence; masks are real, so padding changes no score.
    """

    store: ExampleStore
    sums = ("loss", "examples", "correct")
    test_split = "test"

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.name = config.task
        self.spec = spec_of(config.task)
        self.store = open_examples(config)
        self._protocol = LRAProtocol(config.lra.protocol, self.spec)
        self._train = self.examples("train")
        self._sampler = EpochSampler(len(self._train), config.seed)

    @classmethod
    def find_data(cls, config: RunConfig) -> dict[str, Any]:
        size = model_config(config.model, causal=False)
        _refuse_amounts(size, spec_of(config.task))
        return plan(config.task, config.data.source, limit=config.lra.limit_examples).meta

    @property
    def protocol(self) -> str:
        meta = self.store.meta
        parts = [
            self._protocol.describe(meta.get("split_rule", "splits of the store")),
            _POOLING[self.model_config().pooling],
            self._protocol.choice(self.config.lra.valid_examples),
        ]
        if limit_of_store := meta.get("limit"):
            parts.append(f"at most {limit_of_store:,} examples per split")
        for part, difference in meta.get("differs_from_published", {}).items():
            parts.append(f"not the published data: {part} has {difference}")
        return "; ".join(parts)

    @property
    def num_train_samples(self) -> int:
        return len(self._train)

    def examples(self, split: str) -> Examples:
        """The examples of a split under this run's protocol."""
        return self._protocol.examples(self.store, split)

    def build_model(self) -> TransNormerPreTrainedModel:
        pair = self.store.sequences == 2
        head = TransNormerForPairClassification if pair else TransNormerForSequenceClassification
        config = self.model_config()
        if config.position == config.position_embedding == "none":
            log.warning(
                "%s has no positions: what order its tokens have, only its attention can know "
                "(model.position_embedding=sinusoidal adds them)",
                self.config.model.name,
            )
        return head(config)

    def model_config(self) -> TransNormerConfig:
        """The preset, what the config changes of it, and what the task requires."""
        section = self.config.model
        fields = {"causal": False, "num_labels": self.store.num_labels, **self._protocol.model_fields}
        fields |= section.changes()
        size = model_config(section, **fields)
        positions = self.store.max_length
        if section.max_position_embeddings is not None and section.max_position_embeddings < positions:
            raise ConfigError(
                f"model.max_position_embeddings ({section.max_position_embeddings}) is shorter than the sequences of "
                f"{self.name}, which have up to {positions} tokens",
                hint="leave it out",
            )
        # A preset of Skyformer's size has rows to spare in both tables; one made for another task may have too few.
        fields["vocab_size"] = max(size.vocab_size, self.store.vocab_size)
        _refuse_amounts(size, self.spec)
        if size.embedding == "number":
            fields["vocab_size"] = self.store.vocab_size
        fields["max_position_embeddings"] = max(size.max_position_embeddings, positions)
        return model_config(section, **fields)

    def train_batch(self, positions: Sequence[int]) -> Batch:
        return self.batch(self._train, [self._sampler.index(position)[1] for position in positions])

    def rows(self, positions: range) -> np.ndarray:
        """The numbers of the training examples at these positions."""
        return self._sampler.indices(positions.start, positions.stop)

    def feeds(self, device: torch.device) -> ResidentArena:
        return ResidentArena(self, device)

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
            batch[f"{prefix}input_ids"] = sequence
            if self.spec.padded:
                batch[f"{prefix}attention_mask"] = mask
        if self._protocol.masks_black:
            batch["attention_mask"] = batch["input_ids"] != 0
            # A masked pixel is left out of its row of tokens; those that stay keep their positions in the image.
            positions = torch.arange(ids[0].shape[1], device=ids[0].device)
            batch["position_ids"] = positions.expand_as(ids[0])
        batch["labels"] = labels
        return batch

    def targets_in(self, batch: Batch) -> int:
        return len(batch["labels"])

    def tokens_in(self, batch: Batch) -> int:
        masks = [tensor for name, tensor in batch.items() if name.endswith("attention_mask")]
        return int(sum(mask.sum() for mask in masks)) if masks else batch["input_ids"].numel()

    def logits(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """One row of float32 scores per example."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return model(**inputs, right_padded=not self._protocol.masks_black).logits.float()

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(self.logits(model, batch), batch["labels"], reduction="sum")

    def score(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        """With `weights` [B] in the batch, an example counts as often as its weight says."""
        inputs = {name: tensor for name, tensor in batch.items() if name != "weights"}
        logits, labels = self.logits(model, inputs), batch["labels"]
        weights = batch.get("weights", torch.ones_like(labels)).double()
        losses = F.cross_entropy(logits, labels, reduction="none")
        correct = logits.argmax(dim=-1) == labels
        return torch.stack([(losses * weights).sum(), weights.sum(), (correct * weights).sum()])

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return {"loss": sums["loss"] / sums["examples"], "accuracy": sums["correct"] / sums["examples"]}

    def save_assets(self, folder: str | Path) -> None:
        """Nothing: bytes, pixels and operators are their own ids."""

    def chosen(self, split: str) -> np.ndarray:
        """The numbers of the examples that an evaluation of this split scores."""
        limit = self.config.lra.valid_examples if split == "valid" else None
        return evenly(np.arange(len(self.examples(split))), limit)

    def eval_batches(self, split: str, size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Every world_size-th example; those of similar length together, so that little is padded."""
        examples, chosen = self.examples(split), self.chosen(split)
        mine = chosen[np.argsort(examples.lengths[chosen].max(axis=1), kind="stable")][rank::world_size]
        for start in range(0, len(mine), size):
            yield self.batch(examples, mine[start : start + size].tolist())


def open_examples(config: RunConfig) -> ExampleStore:
    """The store a config names, or the task's own; every byte is checked against the recorded hashes."""
    data = config.data
    store = ExampleStore.open(data.store or cached_examples(config.task, data.source, config.lra.limit_examples))
    if store.task != config.task:
        source = "" if spec_of(config.task).generated else " --source PATH"
        raise ConfigError(
            f"data.store: {store.path} was prepared for {store.task}, the task is {config.task}",
            hint=f"give its own, or make it: `transnormer data prepare {config.task}{source} --out STORE`",
        )
    store.verify()
    return store


def _refuse_amounts(model: TransNormerConfig, spec: Spec) -> None:
    if model.embedding == "number" and spec.padded:
        raise ConfigError(
            f"model.embedding: number: the tokens of {spec.name} are not amounts", hint="use table, its default"
        )
