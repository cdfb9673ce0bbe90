"""What the folder of `model.init` says about its model: keys of the section `model`, read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transnormer.config.known_runs import hint_of_runs
from transnormer.config.model_fields import field_types
from transnormer.config.recipe import read_recipe
from transnormer.config.renamed import upgraded
from transnormer.errors import ConfigError, DataError
from transnormer.files import require_small

RUN_CONFIG, MODEL_CONFIG = "config.yaml", "config.json"


def run_of(folder: Path) -> Path | None:
    """The run that a folder is, or of which it holds weights (RUN/final, RUN/checkpoints/step-00000100)."""
    run = next((each for each in (folder, *folder.parents[:2]) if (each / RUN_CONFIG).is_file()), None)
    inside = {("final",), ("checkpoints", folder.name), ()}
    return run if run and folder.relative_to(run).parts in inside else None


def model_keys(folder: Path) -> dict[str, Any]:
    """The section `model` of a run, or `base`, the model config of a folder that belongs to none."""
    if (run := run_of(folder)) is not None:
        section = upgraded(read_recipe(run / RUN_CONFIG).tree).get("model")
        if not isinstance(section, dict):
            raise DataError(f"{run / RUN_CONFIG} has no section model", hint="restore it, or give RUN/final alone")
        return {key: value for key, value in section.items() if key != "init" and value is not None}
    return {"base": _fields(require_model(folder) / MODEL_CONFIG)}


def require_model(folder: Path) -> Path:
    """The folder itself, if it holds a model."""
    if not (folder / MODEL_CONFIG).is_file():
        problem = "is neither a run nor a model folder" if folder.is_dir() else "does not exist"
        raise ConfigError(f"model.init: {folder} {problem}", hint=hint_of_runs(folder))
    return folder


def _fields(path: Path) -> dict[str, Any]:
    require_small(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise DataError.unreadable(path, error) from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"model.init: {path} is damaged: {error}") from error
    if not isinstance(config, dict) or config.get("model_type") != "transnormer":
        raise ConfigError(f"model.init: {path} is of another kind of model", hint="give a model of this program")
    return {name: config[name] for name in field_types() if name in config}
