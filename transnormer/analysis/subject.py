"""What an analysis looks at: the backbone of a model folder, and sequences of tokens for it to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data.examples import ExampleStore
from transnormer.data.manifest import origin_in_brief
from transnormer.data.open_store import Store
from transnormer.data.streams import TokenStream, read_texts
from transnormer.data.tokenizers import encode_text, load_tokenizer
from transnormer.errors import ConfigError, DataError
from transnormer.files import sha256
from transnormer.generate.load import architecture_of
from transnormer.models import heads
from transnormer.models.backbone import TransNormerModel, TransNormerPreTrainedModel, require_matrices
from transnormer.models.config import TransNormerConfig
from transnormer.models.loading import LOCAL, load_pretrained, loading_errors
from transnormer.tasks.classification import Classification
from transnormer.tasks.registry import task_class
from transnormer.tasks.token_windows import open_store

# Tokens of a text unless asked otherwise: four bytes for each pair of them, head and layer.
DEFAULT_LENGTH = 512
_TOO_SHORT = "attention is about pairs of tokens: give a longer text"


@dataclass(frozen=True)
class Texts:
    """Sequences of token ids, each at least two, their tokenizer where there is one, and where they are from."""

    sequences: list[np.ndarray]
    tokenizer: Any
    facts: dict[str, Any]

    def tokens(self, index: int = 0) -> list[str]:
        """The tokens of a sequence as they are shown on an axis; numbers where they stand for no text."""
        ids = self.sequences[index].tolist()
        if self.tokenizer is None:
            return [str(number) for number in ids]
        shown = (self.tokenizer.decode([number]) for number in ids)
        return [text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") for text in shown]


def model_config(folder: Path) -> TransNormerConfig:
    """The config of a model folder whose layers all have attention matrices; otherwise an error says what it is."""
    architecture = architecture_of(folder)
    if not architecture.startswith("TransNormer"):
        raise ConfigError(f"{folder} holds a {architecture}", "analyse reads models of this package")
    with loading_errors(folder):
        config = TransNormerConfig.from_pretrained(folder, **LOCAL)
    try:
        require_matrices(config)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error.message}", error.hint) from error
    return config


def load_backbone(folder: Path) -> TransNormerModel:
    """The backbone of a model folder, whatever its head is, in float32 and evaluation mode."""
    head: type[TransNormerPreTrainedModel] = getattr(heads, architecture_of(folder))
    model = load_pretrained(head, folder, dtype=torch.float32)
    return model if isinstance(model, TransNormerModel) else model.model


def chosen_length(config: TransNormerConfig, run: RunConfig | None, asked: int | None) -> int:
    """How many tokens a text has: as many as asked for, or as in training, up to 512."""
    if asked is None:
        trained = run.data.sequence_length if run and not is_classification(run) else config.max_position_embeddings
        return min(DEFAULT_LENGTH, trained, config.max_position_embeddings)
    if asked < 2:
        raise ConfigError(f"--length is {asked}", "attention is about pairs of tokens: give 2 or more")
    limited = config.position_embedding == "learned" or "cosformer" in (config.mixers or ())
    if limited and asked > config.max_position_embeddings:
        raise ConfigError(
            f"--length is {asked:,}, but the model's positions end at {config.max_position_embeddings:,}",
            f"give --length {config.max_position_embeddings} or less",
        )
    return asked


def is_classification(run: RunConfig) -> bool:
    """Whether its data are examples, not one stream of tokens."""
    return issubclass(task_class(run.task), Classification)


def texts_of_run(run: RunConfig, length: int, count: int) -> Texts:
    """`count` sequences of at most `length` tokens of the validation split of a run's own store, evenly spread."""
    kind = task_class(run.task)
    store: Store
    if issubclass(kind, Classification):
        store = kind.open_store(run)
        sequences = _examples(store, length, count)
    else:
        store = open_store(run)
        sequences = _spread(store.split("valid"), length, count, f"the valid split of {store.path}")
    facts = {
        "data": {"store": store.path.name, "digest": store.digest, "meta": origin_in_brief(store.meta)},
        "split": "valid",
    }
    return Texts(sequences, load_tokenizer(store.tokenizer_path) if store.tokenizer_path else None, facts)


def texts_of_file(file: Path, folder: Path, length: int, count: int) -> Texts:
    """`count` sequences of a text file, read by the tokenizer of the model folder."""
    tokenizer = load_tokenizer(folder)
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer in {folder} has no end-of-text token", "set its eos_token and save it again")
    sequences = _spread(read_texts([file], tokenizer), length, count, str(file))
    return Texts(sequences, tokenizer, {"text": file.name, "sha256": sha256(file)})


def text_of_prompt(prompt: str, folder: Path, length: int) -> Texts:
    """One sequence: the first `length` tokens of a prompt."""
    tokenizer = load_tokenizer(folder)
    ids = encode_text(tokenizer, prompt)[:length]
    if len(ids) < 2:
        raise DataError(f"the prompt has {_tokens(len(ids))}", _TOO_SHORT)
    return Texts([ids], tokenizer, {"prompt": prompt})


@torch.no_grad()
def attentions(model: TransNormerModel, ids: np.ndarray) -> Sequence[Tensor]:
    """The matrices [1, H, N, N] of every layer for one sequence of token ids [N]."""
    return model(input_ids=torch.from_numpy(ids)[None], output_attentions=True).attentions


def _spread(stream: TokenStream, length: int, count: int, name: str) -> list[np.ndarray]:
    """`count` windows of a stream at equal distances, without overlap; fewer where it is short."""
    if len(stream) < 2:
        raise DataError(f"{name} has {_tokens(len(stream))}", _TOO_SHORT)
    count = max(1, min(count, len(stream) // length))
    starts = np.linspace(0, max(0, len(stream) - length), count).astype(int).tolist()
    return [stream.read(start, min(start + length, len(stream))) for start in starts]


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _examples(store: ExampleStore, length: int, count: int) -> list[np.ndarray]:
    """The beginnings of `count` examples, evenly spread over those of at least two tokens."""
    split = store.split("valid")
    long_enough = np.flatnonzero(split.lengths[:, 0] > 1)
    if not len(long_enough):
        raise DataError(f"{store.path}: no example of the valid split has two tokens", "give --text FILE")
    chosen = long_enough[np.linspace(0, len(long_enough) - 1, min(count, len(long_enough))).astype(int)]
    return [split.sequence(int(index))[:length].astype(np.int64) for index in chosen]
