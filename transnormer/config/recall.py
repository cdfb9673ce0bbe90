"""Keys of the recall tasks."""

from __future__ import annotations

from pydantic import Field

from transnormer.config.section import TaskSection


class RecallSection(TaskSection):
    """The recall tasks, recall/mqar; no other task has these keys."""

    # Sequences are generated, not read from a corpus.
    idle_data_keys = ("corpus", "source", "tokenizer", "vocab_size", "limit_bytes", "sequence_length", "eval_windows")

    pairs: int = Field(default=4, gt=0, description="keys with their values, at the beginning of a sequence")
    sequence_length: int = Field(default=128, gt=0, description="tokens of a sequence, at least four a pair")
    vocab_size: int = Field(default=64, ge=4, description="tokens, of which one half are keys, the other values")
    train_examples: int = Field(default=20_000, gt=0, description="different sequences to train on")
    valid_examples: int = Field(default=1_000, gt=0, description="sequences of the validation and of the test split")
