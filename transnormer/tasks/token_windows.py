"""What the language-modelling tasks share: a token store read in windows, and evaluation as sums over them."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.cache import cached_store
from transnormer.data.prepare import plan
from transnormer.data.sampling import EpochSampler
from transnormer.data.store import TokenStore
from transnormer.data.stored_tokenizer import copy_tokenizer
from transnormer.data.tokenizers import load_tokenizer
from transnormer.data.windows import Windows
from transnormer.errors import DataError
from transnormer.mixers.components.context import Context
from transnormer.models.config import TransNormerConfig
from transnormer.models.presets import model_config
from transnormer.tasks.contract import Batch, Task
from transnormer.tasks.masking import IGNORED

Sample = tuple[np.ndarray, np.ndarray]

# On a CPU, batches of at most so many logits (1 GiB in float32) have them all in memory at once.
_MOST_LOGITS = 2**28


class TokenWindowTask(Task):
    """A language model over windows of a token store; subclasses say what is input and target in a window."""

    store: TokenStore
    sums = ("loss", "targets", "correct")

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.store = open_store(config)
        self.tokenizer = load_tokenizer(self.store.tokenizer_path) if self.store.tokenizer_path else None
        for split in dict.fromkeys(("train", "valid", *self.store.splits)):
            self._require_a_window(split)  # a run without one could not begin, or never finish
        self._train = self.windows("train")
        self._sampler = EpochSampler(self._train.complete, config.seed)

    @classmethod
    def find_data(cls, config: RunConfig) -> dict[str, Any]:
        return plan(*_corpus(config)).meta

    @abstractmethod
    def windows(self, split: str) -> Windows:
        """A split cut into windows."""

    @abstractmethod
    def train_sample(self, window: np.ndarray, position: int) -> Sample:
        """(inputs, targets) of a window; anything random depends on the seed and the position alone."""

    @abstractmethod
    def eval_sample(self, window: np.ndarray, index: int) -> Sample:
        """(inputs, targets) of a window; the same in every run."""

    @property
    def most_targets(self) -> int | None:
        """The most targets of a training window, where they are few: the model's head can leave the others out."""
        return None

    @property
    def num_train_samples(self) -> int:
        return self._train.complete

    def train_batch(self, positions: Sequence[int]) -> Batch:
        indices = [self._sampler.index(position)[1] for position in positions]
        return _stack([self.train_sample(self._train[i], p) for i, p in zip(indices, positions, strict=True)])

    def targets_in(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def tokens_in(self, batch: Batch) -> int:
        return batch["input_ids"].numel()

    def loss_sum(self, model: torch.nn.Module, batch: Batch, context: Context | None = None) -> Tensor:
        """As that of every task; with a context the batch is this process's piece of its sequences."""
        inputs, targets = batch["input_ids"], batch["targets"]
        whole = inputs.numel() * (context.size if context else 1)  # shared to save memory, as one process would
        shared = {} if context is None else {"context": context}
        if inputs.is_cuda or whole * self.store.vocab_size > _MOST_LOGITS:
            few = {} if self.most_targets is None else {"most_targets": self.most_targets}
            return model(input_ids=inputs, targets=targets, **few, **shared).loss
        return _cross_entropy_sum(model(input_ids=inputs, **shared).logits, targets)

    def score(self, model: Any, batch: Batch) -> Tensor:
        loss, hits = model.score_targets(batch["input_ids"], batch["targets"])
        targets = (batch["targets"] != IGNORED).sum()
        return torch.stack([loss.double(), targets.double(), hits.double()])

    def save_assets(self, folder: str | Path) -> None:
        copy_tokenizer(self.store.tokenizer_path, folder)

    def model_config(self, **fields: Any) -> TransNormerConfig:
        """The preset, what the config changes of it, and what the task requires."""
        # generate() reads from a model's config how its tokenizer begins, ends and pads a text.
        special = {
            f"{kind}_token_id": getattr(self.tokenizer, f"{kind}_token_id", None) for kind in ("bos", "eos", "pad")
        }
        fields = {"vocab_size": self.store.vocab_size, **special, **fields}
        return model_config(self.config.model, **fields)

    def _require_a_window(self, split: str) -> None:
        windows, length = self.windows(split), self.config.data.sequence_length
        if not windows.complete:
            raise DataError(
                f"{self.store.path}: the {split} split has {len(windows.split):,} tokens, too few for one window of "
                f"{length}",
                "give more text or set a smaller data.sequence_length",
            )

    def eval_batches(self, split: str, size: int, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Every world_size-th window: full ones in batches, the last, shorter one by itself; nothing is padded."""
        windows = self.windows(split)
        total = min(len(windows), self.config.data.eval_windows or len(windows))
        mine = range(total)[rank::world_size]
        full = [index for index in mine if index < windows.complete]
        groups = [full[start : start + size] for start in range(0, len(full), size)]
        groups += [[index] for index in mine if index >= windows.complete]
        for group in groups:
            yield _stack([self.eval_sample(windows[index], index) for index in group])


def open_store(config: RunConfig) -> TokenStore:
    """The store a config names, or that of its corpus; every byte is checked against the recorded hashes."""
    store = TokenStore.open(config.data.store or cached_store(*_corpus(config)))
    store.verify()
    return store


def _corpus(config: RunConfig) -> tuple[str, str | None, int | None, int | None, str | None]:
    """What decides the store of a corpus."""
    data = config.data
    return data.corpus, data.tokenizer, data.vocab_size, data.limit_bytes, data.source


def token_scores(sums: dict[str, float]) -> dict[str, float]:
    """Mean loss per target, its exponential, and the share of targets predicted exactly."""
    targets = sums["targets"]
    return {
        "loss": sums["loss"] / targets,
        "perplexity": perplexity(sums["loss"], targets),
        "accuracy": sums["correct"] / targets,
    }


def perplexity(loss: float, count: float) -> float:
    """exp(loss / count), infinite where a float cannot hold it."""
    try:
        return math.exp(loss / count)
    except OverflowError:
        return math.inf


def _stack(samples: list[Sample]) -> Batch:
    inputs, targets = zip(*samples, strict=True)
    return {"input_ids": torch.from_numpy(np.stack(inputs)), "targets": torch.from_numpy(np.stack(targets))}


def _cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    # [B, T, V] -> [B * T, V]
    flat = logits.float().flatten(0, 1)
    return F.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="sum")
