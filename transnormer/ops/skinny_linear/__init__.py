"""Skinny GEMMs, several in one kernel: the linear layers of a decode step, which have one row per sequence.

With one token of each sequence a product is as long as its launch. On CUDA the layers that read the same rows share one
kernel, which reads their weights where they are; packed weights would have to be copied, and copied again after every
change. There is no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from transnormer.errors import ConfigError
from transnormer.ops.activations import ACTIVATIONS, check_activation
from transnormer.ops.autocast import matmul_dtype
from transnormer.ops.backend import choose, load_kernel
from transnormer.ops.shapes import check_are_tensors, check_no_tangents

_KERNEL = load_kernel("skinny_linear")
MOST_LAYERS = 3


def linears(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *, backend: str | None = None
) -> tuple[Tensor, ...]:
    """Up to three linear layers of one shape on the same rows: x Wᵀ + b, each [..., N].

    x is [..., K], W [N, K] and b [N].

    >>> import torch
    >>> layers = [torch.nn.Linear(8, 16) for _ in range(3)]
    >>> q, k, v = tn.ops.linears(torch.randn(2, 8), [each.weight for each in layers], [each.bias for each in layers])
    >>> q.shape
    torch.Size([2, 16])
    """
    if not 1 <= len(weights) == len(biases) <= MOST_LAYERS:
        raise ConfigError(
            f"linears: up to {MOST_LAYERS} weights, each with a bias, got {len(weights)} and {len(biases)}"
        )
    _check("linears", x, weights, biases)
    if choose("skinny_linear", _KERNEL, backend, x.device, x=x).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("linears", x, *weights, *biases)
        rows, width = x.reshape(-1, x.shape[-1]), weights[0].shape[0]
        return tuple(y.reshape(*x.shape[:-1], width) for y in _KERNEL.linears(rows, list(weights), list(biases)))
    return tuple(F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))


def gated(
    x: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor,
    up_weight: Tensor,
    up_bias: Tensor,
    *,
    activation: str = "silu",
    backend: str | None = None,
) -> Tensor:
    """Gate and up of a gated linear unit: act(x Wgᵀ + bg) ⊙ (x Wuᵀ + bu), [..., N].

    x is [..., K]; both layers have weights [N, K] and biases [N].

    >>> import torch
    >>> gate, up = torch.nn.Linear(8, 16), torch.nn.Linear(8, 16)
    >>> tn.ops.gated(torch.randn(3, 8), gate.weight, gate.bias, up.weight, up.bias).shape
    torch.Size([3, 16])
    """
    check_activation("gated", activation)
    _check("gated", x, (gate_weight, up_weight), (gate_bias, up_bias))
    if choose("skinny_linear", _KERNEL, backend, x.device, x=x).backend == "triton":
        assert _KERNEL is not None
        check_no_tangents("gated", x, gate_weight, gate_bias, up_weight, up_bias)
        rows = x.reshape(-1, x.shape[-1])
        y: Tensor = _KERNEL.gated(rows, gate_weight, gate_bias, up_weight, up_bias, activation)
        return y.reshape(*x.shape[:-1], gate_weight.shape[0])
    return ACTIVATIONS[activation](F.linear(x, gate_weight, gate_bias)) * F.linear(x, up_weight, up_bias)


def _check(op: str, x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
    """Shapes and dtypes of a call, or an error that names the argument."""
    for weight, bias in zip(weights, biases, strict=True):
        check_are_tensors(op, x=x, weight=weight, bias=bias)
    if not x.dim():
        raise ConfigError(f"{op}: x must be [..., K], got a number")
    wanted = (weights[0].shape[0] if weights[0].dim() else 0, x.shape[-1])
    for weight, bias in zip(weights, biases, strict=True):
        if weight.shape != wanted:
            raise ConfigError(f"{op}: every weight must be [N, K] = {list(wanted)}, got {list(weight.shape)}")
        if bias.shape != wanted[:1]:
            raise ConfigError(f"{op}: every bias must be [N] = {[wanted[0]]}, got {list(bias.shape)}")
        if not matmul_dtype(x) == matmul_dtype(weight) == matmul_dtype(bias):
            raise ConfigError(f"{op}: one dtype for all, got {x.dtype}, {weight.dtype} and {bias.dtype}")
