"""`save_pretrained` without its progress bar, which would break into the bar of a training run at every checkpoint."""

from __future__ import annotations

from pathlib import Path

from transformers.utils import logging

from transnormer.models.backbone import TransNormerPreTrainedModel


def save_quietly(model: TransNormerPreTrainedModel, folder: Path) -> None:
    """Write a Hugging Face model folder and print nothing."""
    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if had_bar:
            logging.enable_progress_bar()
