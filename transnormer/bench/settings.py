"""The settings in which methods are compared for speed: model sizes and batches that all of them share, by name."""

from __future__ import annotations

from dataclasses import dataclass

from transnormer.errors import ConfigError, did_you_mean
from transnormer.models.presets import BYTE_TOKENS, GPT2_TOKENS, METHODS, list_presets

# A step of a language model, and of a large one: what one GPU holds beside a compiler's check, and one sequence of 32k.
_TOKENS, _TOKENS_OF_LARGE = 65_536, 32_768


@dataclass(frozen=True)
class Setting:
    """The model config that all methods share. The paper does not say which one it timed: two readings are here."""

    size: str
    batch: int | None  # sequences a step; None: as many as make `tokens`
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    block_size: int
    dropout: float  # as trained; none where one step is all that is ever run
    about: str
    # Of the model; None: that of the size, of which bytes are drawn.
    vocabulary: int | None = None
    tokens: int | None = None  # of a step, where the batch does not say it

    def sequences(self, length: int) -> int:
        """Sequences of that length in a step."""
        if self.batch is not None:
            return self.batch
        assert self.tokens is not None
        return max(1, self.tokens // length)


def _language(size: str, layers: int, width: int, heads: int, dropout: float, tokens: int, about: str) -> Setting:
    about = f"{about}, GPT-2's {GPT2_TOKENS:,} tokens, {tokens:,} a step"
    return Setting(size, None, layers, width, heads, 64, dropout, about, GPT2_TOKENS, tokens)


SETTINGS = {
    "paper": Setting("lra-text", 20, 6, 128, 8, 32, 0.0, "the authors' speed scripts"),
    "skyformer": Setting(
        "lra-text", 16, 2, 64, 2, 64, 0.0, "what the paper states for accuracy: Skyformer's LRA models"
    ),
    "tiny": Setting("tiny", 1, 4, 128, 4, 64, 0.0, "the language models of the demo"),
    "lm": _language("lm", 6, 512, 8, 0.1, _TOKENS, "the paper's language model"),
    "enwik8": Setting(
        "lm", None, 12, 512, 8, 64, 0.0, f"the byte models of lm/enwik8, {_TOKENS:,} a step", BYTE_TOKENS, _TOKENS
    ),
    "350m": _language("350m", 24, 1024, 16, 0.0, _TOKENS_OF_LARGE, "350 M parameters"),
    "1b": _language("1b", 18, 2048, 32, 0.0, _TOKENS_OF_LARGE, "1 G parameters"),
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
