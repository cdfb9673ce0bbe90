"""How many tokens a model can read in a row, said before it reads them."""

from __future__ import annotations

from transnormer.errors import ConfigError
from transnormer.models.config import TransNormerConfig


def require_positions(config: TransNormerConfig, tokens: int) -> None:
    """Refuse more tokens than a model has positions for; sinusoids, rotations and no positions at all have no end."""
    ends = {}
    if config.position_embedding == "learned":
        ends["its positions are learned"] = config.max_position_embeddings
    if "cosformer" in (config.mixers or ()):
        ends["the cosine of cosformer is zero"] = (
            config.options_of("cosformer")["horizon"] or config.max_position_embeddings
        )
    for why, most in ends.items():
        if tokens > most:
            raise ConfigError(
                f"{tokens:,} tokens in a row, but this model ends at {most:,}: {why}",
                f"--context {most} reads windows of that length, with --stride N overlapping ones",
            )
