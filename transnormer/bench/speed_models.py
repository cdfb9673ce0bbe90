"""The models and batches of a setting, as a training step takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transnormer.bench.settings import Setting
from transnormer.config.schema import OptimSection, RunConfig, TrainSection
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.heads import TransNormerForCausalLM, TransNormerForSequenceClassification
from transnormer.models.presets import SIZES, preset
from transnormer.tasks.contract import Batch, Feeds

STEPS_AT_ONCE = 10  # of training between two looks at the clock, as a run makes them between two lines of its journal


def build_model(
    setting: Setting, method: str, length: int, device: torch.device | str = "cpu"
) -> TransNormerPreTrainedModel:
    """A method's model in a setting, for sequences of that length; on a device always the same weights.

    They are drawn there, which for a billion of them spares most of a minute.
    """
    name = f"{method}-{setting.size}"
    base = preset(name)
    assert base.intermediate_size is not None
    assert base.mixers is not None
    # Methods that replace attention and FFN at once have more, thinner layers: keep their ratio to a plain layer.
    layers = setting.num_hidden_layers * base.num_hidden_layers // SIZES[setting.size]["num_hidden_layers"]
    overrides: dict[str, Any] = {
        "hidden_size": setting.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": setting.num_attention_heads,
        "max_position_embeddings": length,
        "intermediate_size": base.intermediate_size * setting.hidden_size // base.hidden_size,
        "dropout": setting.dropout,
        "attention_dropout": 0.0,
    }
    if setting.vocabulary is not None:
        overrides["vocab_size"] = setting.vocabulary
    if "diag" in base.mixers:
        overrides["mixer_options"] = {"diag": {"block_size": setting.block_size}}
    config = preset(name, **overrides)
    torch.manual_seed(0)
    with torch.device(device):
        return TransNormerForCausalLM(config) if config.causal else TransNormerForSequenceClassification(config)


def run_config(setting: Setting, length: int, gradient_checkpointing: bool = False) -> RunConfig:
    """What a training step is told: AdamW with its schedule and clipping, as `transnormer train lm/text` has them."""
    return RunConfig(
        optim=OptimSection(lr=1e-4, warmup_steps=10, clip_norm=1.0),
        train=TrainSection(
            steps=1000,
            batch_size=setting.sequences(length),
            log_every=STEPS_AT_ONCE,
            gradient_checkpointing=gradient_checkpointing,
        ),
    )


class FixedBatch(Feeds):
    """The same random samples for every step: `targets` are the next tokens of a language model, `labels` classes."""

    def __init__(self, setting: Setting, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = setting.sequences(length)
        ids = torch.randint(0, setting.vocabulary or 256, (rows, length + 1), generator=generator)
        self.batch = {"input_ids": ids[:, :-1].contiguous()}
        self.is_language = SIZES[setting.size]["causal"]
        if self.is_language:
            self.batch["targets"] = ids[:, 1:].contiguous()
        else:
            self.batch["labels"] = torch.randint(0, 2, (rows,), generator=generator)

    def feed(self, positions: range) -> Batch:
        return self.batch

    def targets(self, feed: Batch) -> int:
        return feed["targets" if self.is_language else "labels"].numel()

    def tokens(self, feed: Batch) -> int:
        return feed["input_ids"].numel()

    def loss_sum(self, model: torch.nn.Module, feed: Batch) -> Tensor:
        """Language models give the sum over their targets, and no logits; classifiers the mean."""
        loss = model(**feed).loss
        return loss if self.is_language else loss * len(feed["labels"])
