"""The settings in which methods are compared for speed: model sizes and batches that all of them share, by name."""

from __future__ import annotations

from dataclasses import dataclass

from transnormer.errors import ConfigError, did_you_mean
from transnormer.models.presets import GPT2_TOKENS, METHODS, list_presets

TOKENS = 65_536
_TOKENS_OF_A_STEP = "GPT-2's 50,257 tokens, 65,536 a step"


@dataclass(frozen=True)
class Setting:
    """The model config that all methods share. The paper does not say which one it timed: two readings are here."""

    size: str
    batch: int | None  # sequences a step; None: as many as make TOKENS
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    block_size: int
    dropout: float  # as trained; none where one step is all that is ever run
    about: str
    # Of the model; None: that of the size, of which bytes are drawn.
    vocabulary: int | None = None

    def sequences(self, length: int) -> int:
        """Sequences of that length in a step."""
        return self.batch or max(1, TOKENS // length)


SETTINGS = {
    "paper": Setting("lra-text", 20, 6, 128, 8, 32, 0.0, "the authors' speed scripts"),
    "skyformer": Setting(
        "lra-text", 16, 2, 64, 2, 64, 0.0, "what the paper states for accuracy: Skyformer's LRA models"
    ),
    "tiny": Setting("tiny", 1, 4, 128, 4, 64, 0.0, "the language models of the demo"),
    "lm": Setting(
        "lm", None, 6, 512, 8, 64, 0.1, f"the paper's language model, {_TOKENS_OF_A_STEP}", vocabulary=GPT2_TOKENS
    ),
    "350m": Setting("350m", None, 24, 1024, 16, 64, 0.0, f"350 M parameters, {_TOKENS_OF_A_STEP}", GPT2_TOKENS),
    "1b": Setting("1b", None, 18, 2048, 32, 64, 0.0, f"1 G parameters, {_TOKENS_OF_A_STEP}", GPT2_TOKENS),
}


def setting_named(name: str) -> Setting:
    """Look a setting up by name."""
    if name not in SETTINGS:
        raise ConfigError(f"--setting: unknown setting '{name}'", did_you_mean(name, SETTINGS))
    return SETTINGS[name]


def known_methods(setting: str) -> list[str]:
    """The methods that can run in a setting."""
    size = setting_named(setting).size
    return [method for method in METHODS if f"{method}-{size}" in list_presets()]
