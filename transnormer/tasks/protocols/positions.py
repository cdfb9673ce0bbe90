"""How many tokens a model can read in a row, said before it reads them."""

from __future__ import annotations

from transnormer.errors import ConfigError
from transnormer.models.config import TransNormerConfig


def require_positions(config: TransNormerConfig, tokens: int) -> None:
    """Refuse more tokens than there are learned positions; sinusoids, rotations and no positions at all have no end."""
    most = config.max_position_embeddings
    if config.position_embedding == "learned" and tokens > most:
        raise ConfigError(
            f"{tokens:,} tokens in a row, but the positions of this model are learned and end at {most:,}",
            f"--context {most} reads windows of that length, with --stride N overlapping ones",
        )
