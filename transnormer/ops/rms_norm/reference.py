"""RMSNorm written from the equation."""

from __future__ import annotations

from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x divided by the root of its mean square (eps inside the root), times the gain if there is one."""
    normed = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight
