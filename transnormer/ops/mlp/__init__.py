"""The feed-forward layer W2 act(W1 x) of the vanilla transformer, with both biases."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError, did_you_mean
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.glu import ACTIVATIONS
from transnormer.ops.shapes import check_no_tangents, check_one_dtype

_KERNEL = load_kernel("mlp")


def mlp(
    x: Tensor,
    weight_in: Tensor,
    bias_in: Tensor,
    weight_out: Tensor,
    bias_out: Tensor,
    *,
    activation: str = "gelu",
    backend: str | None = None,
) -> Tensor:
    """act(x·weight_inᵀ + bias_in)·weight_outᵀ + bias_out; x [..., D], weight_in [F, D], weight_out [D_out, F].

    The kernel is for layers that fit on chip and takes autocast's dtype; PyTorch's products serve all others. It keeps
    x and the weights for the backward, and is differentiable once.
    """
    _check(x, weight_in, bias_in, weight_out, bias_out, activation)
    if choose("mlp", _KERNEL, backend, x.device, x=x, weight_out=weight_out).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("mlp", x, weight_in, bias_in, weight_out, bias_out)
        return _KERNEL.mlp(x, weight_in, bias_in, weight_out, bias_out, activation)
    return F.linear(ACTIVATIONS[activation](F.linear(x, weight_in, bias_in)), weight_out, bias_out)


def _check(
    x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, activation: str
) -> None:
    if activation not in ACTIVATIONS:
        raise ConfigError(f"mlp: unknown activation '{activation}'", did_you_mean(activation, ACTIVATIONS))
    if x.dim() < 1:
        raise ConfigError("mlp: x must be [..., D], got a number")
    if weight_in.dim() != 2 or weight_in.shape[1] != x.shape[-1]:
        raise ConfigError(f"mlp: weight_in must be [F, {x.shape[-1]}], got {list(weight_in.shape)}")
    if bias_in.shape != weight_in.shape[:1]:
        raise ConfigError(f"mlp: bias_in must be [{weight_in.shape[0]}], got {list(bias_in.shape)}")
    if weight_out.dim() != 2 or weight_out.shape[1] != weight_in.shape[0]:
        raise ConfigError(f"mlp: weight_out must be [D_out, {weight_in.shape[0]}], got {list(weight_out.shape)}")
    if bias_out.shape != weight_out.shape[:1]:
        raise ConfigError(f"mlp: bias_out must be [{weight_out.shape[0]}], got {list(bias_out.shape)}")
    check_one_dtype("mlp", x=x, weight_in=weight_in, bias_in=bias_in, weight_out=weight_out, bias_out=bias_out)
