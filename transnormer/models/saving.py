"""`save_pretrained` without its progress bar, which would break into the bar of a training run at every checkpoint."""

from __future__ import annotations

from pathlib import Path

from transnormer.models.backbone import TransNormerPreTrainedModel
from transnormer.models.quiet import no_progress_bars


def save_quietly(model: TransNormerPreTrainedModel, folder: Path) -> None:
    """Write a Hugging Face model folder and print nothing."""
    with no_progress_bars():
        model.save_pretrained(folder)
