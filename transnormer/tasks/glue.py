"""Seven tasks of GLUE (Wang et al. 2018): classify sentences, or pairs of them, with a pre-trained model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.example_plan import Plan
from transnormer.data.examples import ExampleStore
from transnormer.data.glue.prepare import plan
from transnormer.data.glue.spec import spec_of
from transnormer.data.stored_tokenizer import copy_tokenizer
from transnormer.data.tokenizers import load_tokenizer
from transnormer.errors import ConfigError
from transnormer.models.config import TransNormerConfig
from transnormer.tasks.classification import Classification
from transnormer.tasks.glue_metrics import metrics_of

_MISMATCHED = "_mismatched"
_WIDTH = 8  # lengths that batches are padded to are multiples of this: tensor cores waste less


class Glue(Classification):
    """Scored on the development set; the best checkpoint is chosen there too, as results on it are published.

    MNLI has two of them: that of the genres of the training set chooses, that of other genres (`_mismatched`) is scored
    along with it. The labels of test sets are not published: they are predicted, for GLUE's server to score.
    """

    def __init__(self, config: RunConfig) -> None:
        self.spec = spec_of(config.task)
        classes = range(len(self.spec.labels))
        self.sums = ("loss", "examples", *(f"{label}>{predicted}" for label in classes for predicted in classes))
        super().__init__(config)

    @classmethod
    def plan(cls, config: RunConfig) -> Plan:
        return plan(config.task, config.data.source, config.data.tokenizer, config.glue.max_length)

    @classmethod
    def preparation(cls, name: str) -> str:
        return f"transnormer data prepare {name} --source FOLDER --tokenizer roberta:FOLDER --out STORE"

    @classmethod
    def settled(cls, config: RunConfig) -> RunConfig:
        """Epochs become steps, as many as the store's training split makes of them."""
        glue, train, optim = config.glue, config.train, config.optim
        if glue.epochs is None:
            return config
        if config.data.store:
            examples = len(ExampleStore.open(config.data.store).split("train"))
        else:
            examples = len(cls.plan(config).source.parts["train"].splits["train"])
        steps = math.ceil(glue.epochs * examples / train.batch_size)
        warmup = int(glue.warmup_ratio * steps)
        for key, section, value in (("train.steps", train, steps), ("optim.warmup_steps", optim, warmup)):
            name = key.partition(".")[2]
            if name in section.model_fields_set and getattr(section, name) != value:
                raise ConfigError(
                    f"{key}={getattr(section, name)}: glue.epochs={glue.epochs:g} decides it, and makes {value} of it",
                    hint=f"leave {key} out, or set glue.epochs=null",
                )
        every = {
            name: math.ceil(examples / train.batch_size)
            for name in ("eval_every", "save_every")
            if name not in train.model_fields_set
        }
        return config.model_copy(
            update={
                "train": train.model_copy(update={"steps": steps, **every}),
                "optim": optim.model_copy(update={"warmup_steps": warmup}),
            }
        )

    @property
    def protocol(self) -> str:
        metric = f"{self.primary_metric} on the development set"
        if self.beside("valid"):
            metric += " of the genres it was trained on, the other set beside it"
        parts = [
            f"{metric}, where the best checkpoint is chosen",
            f"at most {self.store.max_length} tokens, the longer of a pair cut first",
            f"splits: {self.store.meta.get('split_rule', 'those of the store')}",
        ]
        return "; ".join(parts + self.origin_in_words())

    @property
    def model_fields(self) -> dict[str, Any]:
        """RoBERTa's classifier, and what its tokenizer begins, ends and pads a text with."""
        assert self.store.tokenizer_path is not None
        tokenizer = load_tokenizer(self.store.tokenizer_path)
        special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
        return {"pooling": "first", "classifier_act": "tanh", **special}

    def vocab_size(self, model: TransNormerConfig) -> int:
        return self.store.vocab_size

    @property
    def positions(self) -> int:
        """Not the store's limit: few examples come near it, and a pre-trained model may have fewer positions."""
        return max(self.width(split) for split in self.store.splits)

    def width(self, split: str) -> int:
        longest = int(self.examples(split).lengths.max())
        return min(-(-longest // _WIDTH) * _WIDTH, self.store.max_length)

    def chosen(self, split: str) -> np.ndarray:
        if split in self.store.meta["unlabelled"]:
            raise ConfigError(
                f"the labels of {self.name}'s {split} split are not published",
                hint="`transnormer predict RUN --out FOLDER` writes the files that gluebenchmark.com scores",
            )
        return super().chosen(split)

    def beside(self, split: str) -> Sequence[str]:
        other = f"{split}{_MISMATCHED}"
        return [other] if other in self.store.splits else []

    def counts(self, predicted: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The confusion matrix, row by row: all of the metrics can be made of it."""
        classes = len(self.spec.labels)
        kinds = torch.arange(classes**2, device=labels.device)
        return ((labels * classes + predicted).unsqueeze(1) == kinds).double().mul(weights.unsqueeze(1)).sum(dim=0)

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        scores = {"loss": sums["loss"] / sums["examples"], **self._metrics(sums, "")}
        for other in self.beside("valid"):
            if f"{other}.loss" in sums:
                named = self._metrics(sums, f"{other}.")
                scores |= {f"{name}{_MISMATCHED}": value for name, value in named.items()}
        return scores

    def _metrics(self, sums: dict[str, float], prefix: str) -> dict[str, float]:
        counts = np.array([round(sums[f"{prefix}{name}"]) for name in self.sums[2:]])
        return metrics_of(counts.reshape(len(self.spec.labels), -1), self.spec.metrics)

    def save_assets(self, folder: str | Path) -> None:
        copy_tokenizer(self.store.tokenizer_path, folder)
