"""Activations inside Triton kernels."""

from __future__ import annotations

import triton
import triton.language as tl

ACTIVATION_CODES = {"silu": 0, "relu": 1, "gelu": 2}


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """act(x) and act'(x) in float32; comparisons let NaN through."""
    if ACTIVATION == 0:  # silu
        sigmoid = 1.0 / (1.0 + tl.exp(-x))
        value = x * sigmoid
        slope = sigmoid + value * (1.0 - sigmoid)
    elif ACTIVATION == 1:  # relu
        value = tl.where(x <= 0.0, 0.0, x)
        slope = tl.where(x <= 0.0, 0.0, 1.0)
    else:  # gelu, exact: x·Φ(x), whose slope is Φ(x) + x·φ(x)
        SQRT_HALF: tl.constexpr = 0.7071067811865476
        DENSITY_AT_0: tl.constexpr = 0.3989422804014327
        probability = 0.5 + 0.5 * tl.erf(x * SQRT_HALF)
        value = x * probability
        slope = probability + x * DENSITY_AT_0 * tl.exp(-0.5 * x * x)
    return value, slope
