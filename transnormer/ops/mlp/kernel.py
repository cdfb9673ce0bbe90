"""The feed-forward layer in one kernel, for models so narrow that it fits on chip (see ops/glu/kernel_narrow.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transnormer.ops.glu.kernel_activations import ACTIVATION_CODES
from transnormer.ops.glu.kernel_narrow import WIDEST, WIDEST_HIDDEN, is_narrow, narrow_layer
from transnormer.ops.launch import cannot_launch, in_autocast_dtype, matmul_dtype


def why_not(*, device: str, x: Tensor | None = None, weight_out: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    problem = cannot_launch(device, x, None, WIDEST)
    if problem or x is None or weight_out is None:
        return problem
    if matmul_dtype(x) == torch.float32:
        return "dtype float32; the kernel takes bfloat16 and float16"
    if not is_narrow(x, weight_out):
        return f"{list(weight_out.shape)} is wider than [{WIDEST}, {WIDEST_HIDDEN}]"
    return None


def mlp(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, activation: str) -> Tensor:
    """The kernel behind `transnormer.ops.mlp`; its arguments have been checked there."""
    x, weight_in, bias_in, weight_out = (in_autocast_dtype(tensor) for tensor in (x, weight_in, bias_in, weight_out))
    y = narrow_layer(x, weight_in, bias_in, weight_out, ACTIVATION_CODES[activation])
    return y + bias_out.to(y.dtype)  # a compiler joins it with the dropout and the residual that follow
