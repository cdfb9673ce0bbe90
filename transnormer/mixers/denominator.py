"""Row sums of linear attention as one more column of V, a column of ones: one op and one state serve both."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def with_ones(v: Tensor) -> Tensor:
    """[B, T, H, D] -> [B, T, H, D + 1]."""
    return F.pad(v, (0, 1), value=1.0)
