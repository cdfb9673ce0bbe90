"""Which Hugging Face folder a RUN argument means."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from transnormer.errors import ConfigError


class Weights(StrEnum):
    """Which weights of a run."""

    final = "final"
    best = "best"
    last = "last"


def model_folder(path: Path, weights: Weights | None) -> Path:
    """The folder of a run's weights (final unless another is asked for), or the model folder itself."""
    from transnormer.config.known_runs import hint_of_runs
    from transnormer.train.run_folder import RunFolder

    if (path / "config.yaml").is_file():
        from transnormer.train.checkpoint import weights_folder

        return weights_folder(RunFolder(path), (weights or Weights.final).value)[0]
    if not path.is_dir():
        problem = "does not exist" if not path.exists() else "is a file, not a folder"
        raise ConfigError(f"{path} {problem}", hint=hint_of_runs(path))
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} is neither a run folder nor a model folder", hint=hint_of_runs(path))
    if weights is not None:
        raise ConfigError(
            f"{path} is a single model, it has no '{weights.value}' checkpoint", hint="leave --checkpoint out"
        )
    from transnormer.train.checkpoint import verify_if_sealed

    verify_if_sealed(path)
    return path
