"""The feed-forward layer in one kernel, for models so narrow that it fits on chip (see ops/glu/kernel_narrow.py)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transnormer.ops.autocast import in_autocast_dtype
from transnormer.ops.glu.kernel_activations import ACTIVATION_CODES
from transnormer.ops.glu.kernel_narrow import narrow_layer
from transnormer.ops.glu.narrow import WIDEST, WIDEST_HIDDEN, is_narrow
from transnormer.ops.launch import ANY_WIDTH, cannot_launch


def why_not(*, device: str, x: Tensor | None = None, weight_out: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    problem = cannot_launch(device, x, None, ANY_WIDTH)
    if problem or x is None or weight_out is None or is_narrow(x, weight_out, gated=False):
        return problem
    shape = f"{x.shape[-1]} -> {weight_out.shape[1]} -> {weight_out.shape[0]}"
    return f"the layer {shape} in {x.dtype}: kernels take half precision, {WIDEST} -> {WIDEST_HIDDEN} -> {WIDEST}"


def mlp(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, activation: str) -> Tensor:
    """The kernel behind `transnormer.ops.mlp`; its arguments have been checked there."""
    x, weight_in, bias_in, weight_out = (in_autocast_dtype(tensor) for tensor in (x, weight_in, bias_in, weight_out))
    y = narrow_layer(x, weight_in, bias_in, weight_out, ACTIVATION_CODES[activation])
    return y + bias_out.to(y.dtype)  # a compiler joins it with the dropout and the residual that follow
