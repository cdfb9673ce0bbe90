"""Keys of the GLUE tasks."""

from __future__ import annotations

from pydantic import Field

from transnormer.config.section import MAX_COUNT, TaskSection


class GlueSection(TaskSection):
    """The GLUE tasks, glue/sst2 and so on; no other task has these keys."""

    # Examples are not windows of a corpus: they have their own lengths.
    idle_data_keys = ("corpus", "vocab_size", "limit_bytes", "sequence_length", "eval_windows")

    max_length: int = Field(
        default=512, gt=0, le=MAX_COUNT, description="prepare so many tokens of an example, marks included"
    )
    epochs: float | None = Field(
        default=3.0,
        gt=0,
        le=MAX_COUNT,
        description="passes over the training split: they decide train.steps and optim.warmup_steps, and each is "
        "followed by an evaluation and a checkpoint unless train.eval_every or train.save_every is set; null: none do",
    )
    warmup_ratio: float = Field(default=0.06, ge=0, lt=1, description="share of the steps of `epochs` that warm up")
