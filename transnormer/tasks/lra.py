"""The five tasks of the Long-Range Arena (Tay et al. 2021): classify long sequences, or pairs of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.example_plan import Plan
from transnormer.data.example_source import evenly
from transnormer.data.examples import Examples
from transnormer.data.lra.prepare import plan
from transnormer.data.lra.spec import Spec, spec_of
from transnormer.errors import ConfigError
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.config import TransNormerConfig
from transnormer.models.presets import model_config
from transnormer.tasks.classification import Classification
from transnormer.tasks.contract import Batch
from transnormer.tasks.lra_protocol import LRAProtocol

log = logging.getLogger(__name__)

_POOLING = {
    "mean": "mean over real tokens",
    "padded_mean": "sum over real tokens divided by the padded length",
    "first": "classified by the first token",
    "last": "classified by the last token",
}


class LongRangeArena(Classification):
    """Scored by accuracy: the share of examples whose class is found.

    The best checkpoint is chosen on the validation split: all of it, or `lra.valid_examples` evenly spaced examples.
    When a run ends, all of the test split is scored once with that checkpoint.
    """

    test_split = "test"

    def __init__(self, config: RunConfig) -> None:
        self.spec = spec_of(config.task)
        self._protocol = LRAProtocol(config.lra.protocol, self.spec)
        self.right_padded = not self._protocol.masks_black
        model_config(config.model, causal=False)  # a model that cannot be is refused before data are made for it
        super().__init__(config)

    @classmethod
    def plan(cls, config: RunConfig) -> Plan:
        return plan(config.task, config.data.source, limit=config.lra.limit_examples)

    @classmethod
    def find_data(cls, config: RunConfig) -> dict[str, Any]:
        _refuse_amounts(model_config(config.model, causal=False), spec_of(config.task))
        return super().find_data(config)

    @classmethod
    def preparation(cls, name: str) -> str:
        source = "" if spec_of(name).generated else " --source PATH"
        return f"transnormer data prepare {name}{source} --out STORE"

    @property
    def protocol(self) -> str:
        parts = [
            self._protocol.describe(self.store.meta.get("split_rule", "splits of the store")),
            _POOLING[self.model_config().pooling],
            self._protocol.choice(self.config.lra.valid_examples),
        ]
        return "; ".join(parts + self.origin_in_words())

    def examples(self, split: str) -> Examples:
        """The examples of a split under this run's protocol."""
        return self._protocol.examples(self.store, split)

    @property
    def model_fields(self) -> dict[str, Any]:
        return self._protocol.model_fields

    def vocab_size(self, model: TransNormerConfig) -> int:
        """A preset of Skyformer's size has rows to spare; one made for another task may have too few."""
        _refuse_amounts(model, self.spec)
        stored = self.store.vocab_size
        return stored if model.embedding == "number" else max(model.vocab_size, stored)

    def build_model(self) -> TransNormerPreTrainedModel:
        model = super().build_model()
        if model.config.position_embedding == "none" and not model.config.rotates:
            log.warning(
                "%s has no positions: what order its tokens have, only its attention can know "
                "(model.position_embedding=sinusoidal adds them)",
                self.config.model.name,
            )
        return model

    def assemble(self, ids: Sequence[Tensor], masks: Sequence[Tensor], labels: Tensor) -> Batch:
        batch = super().assemble(ids, masks, labels)
        if not self.spec.padded:
            batch = {name: tensor for name, tensor in batch.items() if not name.endswith("attention_mask")}
        if self._protocol.masks_black:
            batch["attention_mask"] = batch["input_ids"] != 0
            # A masked pixel is left out of its row of tokens; those that stay keep their positions in the image.
            positions = torch.arange(ids[0].shape[1], device=ids[0].device)
            batch["position_ids"] = positions.expand_as(ids[0])
        return batch

    def chosen(self, split: str) -> np.ndarray:
        limit = self.config.lra.valid_examples if split == "valid" else None
        return evenly(super().chosen(split), limit)

    def save_assets(self, folder: str | Path) -> None:
        """Nothing: bytes, pixels and operators are their own ids."""


def _refuse_amounts(model: TransNormerConfig, spec: Spec) -> None:
    if model.embedding == "number" and spec.padded:
        raise ConfigError(
            f"model.embedding: number: the tokens of {spec.name} are not amounts", hint="use table, its default"
        )
