"""Linear + cross entropy written from the definition, with all logits at once."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from transnormer.ops.shapes import accumulation_dtype


def linear_cross_entropy_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "sum",
) -> Tensor:
    """−log softmax(xWᵀ + b) at the targets, summed or averaged over those that are not `ignore_index`."""
    logits = F.linear(x, weight, bias)  # [N, V]
    logits = logits.to(accumulation_dtype(logits.dtype))
    return F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction=reduction)
