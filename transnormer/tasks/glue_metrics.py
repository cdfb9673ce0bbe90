"""Accuracy, F1 and Matthews correlation from a confusion matrix, which adds up over batches and processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def metrics_of(confusion: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Metrics by name; confusion[label, predicted] is a number of examples. For F1, class 1 is what is looked for.

    A correlation is 0 where there is nothing to correlate: only one class was predicted, or is there at all. So it is
    in scikit-learn, which GLUE's own scores come from.
    """
    return {name: _metric(confusion, name) for name in names}


def _metric(confusion: np.ndarray, name: str) -> float:
    if name == "accuracy":
        return float(confusion.trace() / confusion.sum())
    if name == "matthews" and 1 in (np.count_nonzero(confusion.sum(axis=axis)) for axis in (0, 1)):
        return 0.0
    from torchmetrics.functional import classification  # takes seconds

    labels, predicted = (
        torch.from_numpy(np.repeat(each, confusion.flat)) for each in np.indices((2, 2)).reshape(2, -1)
    )
    if name == "f1":
        return float(classification.binary_f1_score(predicted, labels))
    return float(classification.binary_matthews_corrcoef(predicted, labels))
