"""Predictions as GLUE's server takes them: a file for each test set, with the columns `index` and `prediction`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from transnormer.data.glue.spec import Spec
from transnormer.files import write_text


def write_submission(folder: Path, spec: Spec, split: str, predicted: np.ndarray) -> Path:
    """The file of a split, e.g. SST-2.tsv or MNLI-mm.tsv; `predicted` are the classes of its examples in order."""
    lines = ["index\tprediction", *(f"{number}\t{spec.labels[label]}" for number, label in enumerate(predicted))]
    path = folder / spec.submission(split)
    write_text(path, "\n".join([*lines, ""]))
    return path
