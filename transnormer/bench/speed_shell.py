"""The shells in which methods are compared for speed: model sizes and batches that all of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.heads import TransNormerForCausalLM, TransNormerForSequenceClassification
from transnormer.models.presets import METHODS, SIZES, list_presets, preset


@dataclass(frozen=True)
class Setting:
    """The shell that all methods share. The paper does not say which one it timed: two readings are here."""

    size: str
    batch: int | None  # sequences a step; None: as many as make TOKENS
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    block_size: int
    dropout: float  # as trained; none where one step is all that is ever run
    about: str

    def sequences(self, length: int) -> int:
        """Sequences of that length in a step."""
        return self.batch or max(1, TOKENS // length)


SETTINGS = {
    "paper": Setting("lra-text", 20, 6, 128, 8, 32, 0.0, "the authors' speed scripts"),
    "skyformer": Setting(
        "lra-text", 16, 2, 64, 2, 64, 0.0, "what the paper states for accuracy: Skyformer's LRA models"
    ),
    "tiny": Setting("tiny", 1, 4, 128, 4, 64, 0.0, "the language models of the demo"),
    "lm": Setting("lm", None, 6, 512, 8, 64, 0.1, "the paper's language model on 50,304 words, 65,536 tokens a step"),
}
TOKENS = 65_536
_LM_VOCABULARY = 50_304


def setting_named(name: str) -> Setting:
    """Look a setting up by name."""
    if name not in SETTINGS:
        raise ConfigError(f"unknown setting '{name}'", did_you_mean(name, SETTINGS))
    return SETTINGS[name]


def known_methods(setting: str) -> list[str]:
    """The methods that can run in a setting."""
    size = setting_named(setting).size
    return [method for method in METHODS if f"{method}-{size}" in list_presets()]


def build_model(setting: Setting, method: str, length: int) -> TransNormerPreTrainedModel:
    """A method's model in a setting, for sequences of that length; always the same weights."""
    name = f"{method}-{setting.size}"
    shell = preset(name)
    assert shell.intermediate_size is not None
    assert shell.mixers is not None
    # Methods that replace attention and FFN at once have more, thinner layers: keep their ratio to a plain layer.
    layers = setting.num_hidden_layers * shell.num_hidden_layers // SIZES[setting.size]["num_hidden_layers"]
    overrides: dict[str, Any] = {
        "hidden_size": setting.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": setting.num_attention_heads,
        "max_position_embeddings": length,
        "intermediate_size": shell.intermediate_size * setting.hidden_size // shell.hidden_size,
        "dropout": setting.dropout,
        "attention_dropout": 0.0,
    }
    if setting.size == "lm":
        overrides["vocab_size"] = _LM_VOCABULARY
    if "diag" in shell.mixers:
        overrides["mixer_options"] = {"diag": {"block_size": setting.block_size}}
    config = preset(name, **overrides)
    torch.manual_seed(0)
    return TransNormerForCausalLM(config) if config.causal else TransNormerForSequenceClassification(config)


def make_batch(setting: Setting, length: int, device: torch.device) -> dict[str, Tensor]:
    """Random input of a step, always the same: `targets` are the next tokens of a language model."""
    generator = torch.Generator().manual_seed(0)
    batch = setting.sequences(length)
    words = _LM_VOCABULARY if setting.size == "lm" else 256
    ids = torch.randint(0, words, (batch, length + 1), generator=generator).to(device)
    if SIZES[setting.size]["causal"]:
        return {"input_ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
    labels = torch.randint(0, 2, (batch,), generator=generator).to(device)
    return {"input_ids": ids[:, :-1].contiguous(), "labels": labels}
