"""`save_pretrained` without its progress bar, which would break into the bar of a training run at every checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.quiet import no_progress_bars


def save_quietly(model: TransNormerPreTrainedModel, folder: Path) -> None:
    """Write a Hugging Face model folder and print nothing."""
    with no_progress_bars():
        model.save_pretrained(folder)
    follow_umask(folder)


def save_settings(model: TransNormerPreTrainedModel, folder: Path) -> None:
    """Write what a model folder has beside the weights, of a model whose weights are in shards."""
    model.config.architectures = [type(model).__name__.removeprefix("FSDP")]
    model.config.dtype = str(model.dtype).removeprefix("torch.")
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def follow_umask(folder: Path) -> None:
    """Give the tensors of a model folder the mode of its config: safetensors writes them for the owner alone."""
    for file in folder.glob("*.safetensors"):
        shutil.copymode(folder / "config.json", file)
