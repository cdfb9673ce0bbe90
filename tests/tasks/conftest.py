"""Small stores and models for the task tests."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from token_store import new_store
from torch import Tensor, nn

from transnormer.config.schema import RunConfig
from transnormer.data.tokenizers import byte_tokenizer

TEXT = "".join(f"Line {i} of a small text, {i * i} bytes or so.\n" for i in range(60))


class Bigram(nn.Module):
    """Predicts from the current token alone, so that its loss can be counted by hand."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(torch.randn(vocab_size, vocab_size, generator=generator))
        self.lengths: list[tuple[int, ...]] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        self.lengths.append(tuple(input_ids.shape))
        return SimpleNamespace(logits=self.table[input_ids])

    def score_targets(self, input_ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = self(input_ids).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss, (logits.argmax(dim=-1) == targets).sum()


@pytest.fixture(scope="session")
def bigram_class() -> type[Bigram]:
    return Bigram


@pytest.fixture
def bigram() -> Bigram:
    return Bigram(259)


@pytest.fixture
def byte_store(tmp_path: Path) -> Path:
    """TEXT as bytes; train is all of it, valid the first 1000 bytes."""
    path = tmp_path / "store"
    with new_store(path, tokenizer=byte_tokenizer()) as writer:
        for split, text in (("train", TEXT), ("valid", TEXT[:1000])):
            ids = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)
            writer.append(split, ids, num_bytes=len(ids), num_words=len(text.split()))
    return path


@pytest.fixture
def configure(byte_store: Path) -> Callable[..., RunConfig]:
    def make(
        task: str = "causal_lm", seed: int = 0, batch_size: int = 4, model: dict | None = None, **data: Any
    ) -> RunConfig:
        values = {
            "task": task,
            "seed": seed,
            "model": model or {},
            "data": {"store": str(byte_store), "sequence_length": 32, **data},
            "train": {"batch_size": batch_size},
        }
        return RunConfig.model_validate(values)

    return make
