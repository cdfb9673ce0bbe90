"""What stands between a fault and the weights: tests for finiteness."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no entry of any tensor is NaN or infinite."""
    verdicts = [tensor.isfinite().all() for tensor in tensors]
    return bool(torch.stack(verdicts).all()) if verdicts else True
