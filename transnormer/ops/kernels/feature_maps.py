"""The feature maps φ of linear attention inside kernels."""

from __future__ import annotations

import triton
import triton.language as tl

PHI_CODES = {"identity": 0, "elu": 1, "1+elu": 2}
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def phi(x, columns, PHI: tl.constexpr, D: tl.constexpr, FILLED: tl.constexpr):
    """φ of a tile; columns that only fill up the tile stay zero, which 1+elu alone would not leave so."""
    if PHI == 0:
        return x
    # 1+elu is max(x, 0) + exp(min(x, 0)): no comparison and half the instructions of a choice between two branches.
    wide = x.to(tl.float32)
    mapped = tl.maximum(wide, 0.0, propagate_nan=tl.PropagateNan.ALL) + phi_slope(x, PHI)
    if PHI == 1:
        mapped = mapped - 1.0
    elif FILLED:
        mapped = tl.where(columns[None, :] < D, mapped, 0.0)
    return mapped.to(x.dtype)


@triton.jit
def phi_slope(x, PHI: tl.constexpr):
    """φ'(x), float32: exp(min(x, 0)) for both."""
    wide = x.to(tl.float32)
    if PHI == 0:
        return tl.full(wide.shape, 1.0, tl.float32)
    return tl.exp2(tl.minimum(wide, 0.0) * _LOG2_E)
