"""RMSNorm: x · rsqrt(mean(x²) + eps) over the last dimension, computed in float32."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value

from transnormer.errors import ConfigError
from transnormer.ops.backend import ENVIRONMENT_VARIABLE, choose, load_kernel
from transnormer.ops.rms_norm.saved_output import normed
from transnormer.ops.shapes import accumulation_dtype, check_are_tensors, check_no_tangents

_KERNEL = load_kernel("rms_norm")


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    dtype: torch.dtype | None = None,
    backend: str | None = None,
) -> Tensor:
    """Normalise the last dimension of x [..., D]; `weight` [D] is an optional gain. The result has the dtype of `x`.

    With `dtype` it is rounded to that one instead: to bfloat16 in front of a matrix product under autocast, say.

    >>> import torch
    >>> tn.ops.rms_norm(torch.randn(3, 64)).square().mean(dim=-1).sqrt()
    tensor([1.0000, 1.0000, 1.0000])
    """
    check_are_tensors("rms_norm", x=x, weight=weight)
    if not x.dim() or not x.shape[-1]:
        raise ConfigError(f"rms_norm: x must be [..., D] with at least one column, got {list(x.shape)}")
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ConfigError(f"rms_norm: weight must be [{x.shape[-1]}], got {list(weight.shape)}")
    dtype = dtype or x.dtype
    # A compiler fuses the plain expression with the residual before and the projection after it; a kernel it cannot.
    compiling = torch.compiler.is_compiling()
    if backend is None and compiling and os.environ.get(ENVIRONMENT_VARIABLE, "auto") == "auto":
        backend = "torch"
    if choose("rms_norm", _KERNEL, backend, x.device, x=x, weight=weight).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("rms_norm", x, weight)
        return _KERNEL.rms_norm(x, weight, eps, dtype)
    # With dynamic=True even eps is a symbol, which PyTorch 2.13's compiler cannot hand to a function with a backward.
    if compiling and weight is None and has_static_value(eps):
        return normed(x, eps, dtype)
    precise = accumulation_dtype(x.dtype)
    gain = None if weight is None else weight.to(precise)
    return F.rms_norm(x.to(precise), x.shape[-1:], gain, eps).to(dtype)
