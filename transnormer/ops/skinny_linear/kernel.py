"""Skinny GEMMs in Triton: a program takes all rows and a few columns of a layer.

Weights are the traffic and each is read once; the rows lie in the cache. Sums are float32, rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.activations import ACTIVATION_CODES, activated
from transnormer.ops.kernels.launch import ANY_WIDTH, cannot_launch, kernel_op, power_of_two
from transnormer.ops.kernels.shared_memory import launch

MOST_ROWS = 64
# Columns of a program, few, so that a small layer has programs for most of an H200's 132 multiprocessors; and inputs at
# a time, of which all but the last few are on their way before the first product.
_COLUMNS, _INPUTS, _STAGES = 16, 256, 3


def why_not(*, device: str, x: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    problem = cannot_launch(device, x, None, ANY_WIDTH)
    if problem is not None or x is None:
        return problem
    if x.dtype == torch.float32:
        return "dtype float32; products on tensor cores take bfloat16 and float16"
    if torch.is_autocast_enabled(device):
        return "autocast would round the weights at every call"
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    return None if 0 < rows <= MOST_ROWS else f"{rows} rows; it takes 1 to {MOST_ROWS}"


@triton.jit
def _tile(P, row, first, rows, K: tl.constexpr, BK: tl.constexpr):
    """These rows of P [rows, K], BK numbers of each from `first` on; zero beyond."""
    k = first + tl.arange(0, BK)
    inside = (row < rows)[:, None] & (k < K)[None, :]
    return tl.load(P + row.to(tl.int64)[:, None] * K + k[None, :], mask=inside, other=0.0)


@triton.jit
def _biases(BIAS, column, N: tl.constexpr):
    return tl.load(BIAS + column, mask=column < N, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _store(Y, values, row, column, rows, N: tl.constexpr):
    inside = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(Y + row[:, None] * N + column[None, :], values.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _linears(
    X, W0, W1, W2, B0, B1, B2, Y, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Y [layers, rows, N]; programs: blocks of columns × layers."""
    layer = tl.program_id(1)
    weight, bias = W0, B0
    if layer == 1:
        weight, bias = W1, B1
    elif layer == 2:
        weight, bias = W2, B2
    row, column = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    sums = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        x = _tile(X, row, first, rows, K, BK)
        sums = tl.dot(x, tl.trans(_tile(weight, column, first, N, K, BK)), sums)
    _store(Y + layer * rows * N, sums + _biases(bias, column, N), row, column, rows, N)


@triton.jit
def _gated(
    X, W_GATE, W_UP, B_GATE, B_UP, Y, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Y [rows, N]; programs: blocks of columns."""
    row, column = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        x = _tile(X, row, first, rows, K, BK)
        gate = tl.dot(x, tl.trans(_tile(W_GATE, column, first, N, K, BK)), gate)
        up = tl.dot(x, tl.trans(_tile(W_UP, column, first, N, K, BK)), up)
    value, _ = activated(gate + _biases(B_GATE, column, N), ACTIVATION)
    _store(Y, value * (up + _biases(B_UP, column, N)), row, column, rows, N)


def _options(rows: int, width: int, size: int) -> dict[str, Any]:
    """How a kernel is compiled: a warp for each 16 rows, two at least."""
    tile = power_of_two(rows)
    sizes = {"N": width, "K": size, "BM": tile, "BN": _COLUMNS, "BK": min(_INPUTS, power_of_two(size))}
    return {**sizes, "num_warps": max(2, tile // 16), "num_stages": _STAGES}


@kernel_op("transnormer::skinny_linears")
def _linears_op(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """[layers, rows, N] of x [rows, K]."""
    (rows, size), width, layers = x.shape, weights[0].shape[0], len(weights)
    y = torch.empty((layers, rows, width), dtype=x.dtype, device=x.device)
    # The kernel has three places; what no program asks for may be anything.
    places = [*zip(weights, biases, strict=True)] + [(weights[0], biases[0])] * (3 - layers)
    read = [tensor.contiguous() for pair in zip(*places, strict=True) for tensor in pair]
    grid = (triton.cdiv(width, _COLUMNS), layers)
    launch(_linears, grid)(x.contiguous(), *read, y, rows, **_options(rows, width, size))
    return y


@_linears_op.register_fake
def _(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    return torch.empty((len(weights), x.shape[0], weights[0].shape[0]), dtype=x.dtype, device=x.device)


@kernel_op("transnormer::skinny_gated")
def _gated_op(
    x: Tensor, gate_weight: Tensor, gate_bias: Tensor, up_weight: Tensor, up_bias: Tensor, activation: int
) -> Tensor:
    """[rows, N] of x [rows, K]."""
    (rows, size), width = x.shape, gate_weight.shape[0]
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    read = [tensor.contiguous() for tensor in (x, gate_weight, up_weight, gate_bias, up_bias)]
    grid = (triton.cdiv(width, _COLUMNS),)
    launch(_gated, grid)(*read, y, rows, **_options(rows, width, size), ACTIVATION=activation)
    return y


@_gated_op.register_fake
def _(x: Tensor, gate_weight: Tensor, *_: Any) -> Tensor:
    return torch.empty((x.shape[0], gate_weight.shape[0]), dtype=x.dtype, device=x.device)


def linears(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> tuple[Tensor, ...]:
    """The kernel behind `transnormer.ops.linears`; its arguments have been checked there."""
    return _linears_op(x, weights, biases).unbind(0)


def gated(
    x: Tensor, gate_weight: Tensor, gate_bias: Tensor, up_weight: Tensor, up_bias: Tensor, activation: str
) -> Tensor:
    """The kernel behind `transnormer.ops.gated`; its arguments have been checked there."""
    return _gated_op(x, gate_weight, gate_bias, up_weight, up_bias, ACTIVATION_CODES[activation])
