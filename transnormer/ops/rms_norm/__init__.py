"""RMSNorm: x · rsqrt(mean(x²) + eps) over the last dimension, computed in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.shapes import accumulation_dtype

_KERNEL = load_kernel("rms_norm")


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """Normalise the last dimension; `weight` is an optional gain of that size. The result has the dtype of `x`."""
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ConfigError(f"rms_norm: weight must be [{x.shape[-1]}], got {list(weight.shape)}")
    # A compiler fuses the plain expression with the residual before and the projection after it; a kernel it cannot.
    if backend is None and torch.compiler.is_compiling():
        backend = "torch"
    if choose("rms_norm", _KERNEL, backend, x.device, x=x, weight=weight).backend == "triton":
        assert _KERNEL is not None
        return _KERNEL.rms_norm(x, weight, eps)
    dtype = accumulation_dtype(x.dtype)
    gain = None if weight is None else weight.to(dtype)
    return F.rms_norm(x.to(dtype), x.shape[-1:], gain, eps).to(x.dtype)
