"""Attention cores in full precision: float32 for half inputs, float64 for float64, whatever autocast would like."""

from __future__ import annotations

import torch
from torch import Tensor

from transnormer.ops.shapes import accumulation_dtype


def in_range(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in a dtype whose range exponentials and their sums do not leave: no float16."""
    return tuple(x.float() if x.dtype == torch.float16 else x for x in tensors)


def widened(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that sums, exponentials and inverses need."""
    return tuple(x.to(accumulation_dtype(x.dtype)) for x in tensors)
