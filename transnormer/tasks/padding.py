"""Sequences of unequal length as one batch: padded on the right with zeros, and a mask that says what is real."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def padded(sequences: Sequence[np.ndarray], length: int | None = None) -> tuple[Tensor, Tensor]:
    """ids and mask [B, length] as int64 and bool; without a length, as long as the longest."""
    lengths = np.array([len(ids) for ids in sequences])
    mask = np.arange(length or lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, dtype=np.int64)
    # A boolean index visits row after row, as the concatenated sequences do.
    ids[mask] = np.concatenate(sequences)
    return torch.from_numpy(ids), torch.from_numpy(mask)
