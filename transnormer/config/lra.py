"""Keys of the Long-Range Arena tasks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from transnormer.config.section import MAX_COUNT, TaskSection


class LRASection(TaskSection):
    """The Long-Range Arena tasks, lra/listops and so on; no other task has these keys."""

    # Examples are not windows of a corpus: they have their own tokens and lengths.
    idle_data_keys = ("corpus", "tokenizer", "vocab_size", "limit_bytes", "sequence_length", "eval_windows")

    protocol: Literal["skyformer", "lra_compat"] = Field(
        default="skyformer",
        description="how examples are split, masked and pooled; lra_compat repeats the quirks of published code",
    )
    limit_examples: int | None = Field(
        default=None, gt=0, le=MAX_COUNT, description="prepare at most so many examples of each split"
    )
    valid_examples: int | None = Field(
        default=None, gt=0, le=MAX_COUNT, description="validate on so many examples, evenly spaced; null: all"
    )
