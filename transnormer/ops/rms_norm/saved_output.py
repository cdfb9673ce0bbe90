"""RMSNorm whose backward needs its result instead of its input.

With r = 1/rms(x) and y = x·r the gradient is r·(g − y·mean(g·y)): x does not appear in it. The layer behind keeps y for
its own backward, in bfloat16 where x is a float32 residual stream, so nothing but r is kept for the norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transnormer.ops.shapes import accumulation_dtype


class _Normed(torch.autograd.Function):
    """For compilers, which choose what to keep from this backward; it cannot be differentiated twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        precise = x.to(accumulation_dtype(x.dtype))
        scale = torch.rsqrt(precise.square().mean(dim=-1, keepdim=True) + eps)
        y = precise * scale
        # Not `.to` where it changes nothing: PyTorch 2.11's compiler then takes all gradients to be zero.
        y = y if y.dtype == dtype else y.to(dtype)
        ctx.save_for_backward(y, scale)
        ctx.dtype = x.dtype
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        y, scale = ctx.saved_tensors
        y, g = y.to(scale.dtype), gradients[0].to(scale.dtype)
        return (scale * (g - y * (g * y).mean(dim=-1, keepdim=True))).to(ctx.dtype), None, None


def normed(x: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """x / rms(x) over the last dimension, computed in float32 (float64 for float64) and rounded to `dtype`."""
    result: Tensor = _Normed.apply(x, eps, dtype)
    return result
