"""Feed-forward layers of small width in one kernel: a tile of tokens goes in, the result of the layer comes out.

Nothing in between lies in memory, and nothing is kept but the input: gate and up are computed again in the backward, in
one kernel that scans over the hidden units for dx and one that scans over the tokens for the weights. Products that use
a result keep it as their left side, as it lies in registers: Triton 3.6 can compile a transposed one to wrong numbers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.feed_forward.small_width import WIDEST
from transnormer.ops.kernels.activations import activated
from transnormer.ops.kernels.launch import kernel_op, power_of_two
from transnormer.ops.kernels.shared_memory import launch

_ROWS = 64
# Hidden units at a time; where weights are summed, hidden units of a program, and programs. The fastest of 16 and of 48
# choices for 65,536 tokens on an H200: 13 + 16 + 24 us for a gated layer, where two products and a kernel took 41 + 83.
_UNITS, _UNITS_OF_WEIGHTS, _PROGRAMS = 32, 64, 256
# Hidden units at a time of a forward wider than 64 (the fastest of nine choices for 102,400 tokens).
_UNITS_OF_WIDE = 64


@triton.jit
def _tile(X, tile, rows, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Rows [R, BD] of X [rows, D]."""
    row, column = tile * R + tl.arange(0, R).to(tl.int64), tl.arange(0, BD)
    inside = (row[:, None] < rows) & (column[None, :] < D)
    return tl.load(X + row[:, None] * D + column[None, :], mask=inside, other=0.0)


@triton.jit
def _store_tile(Y, values, tile, rows, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """Values [R, BD] as the rows of a tile of Y [rows, D]."""
    row, column = tile * R + tl.arange(0, R).to(tl.int64), tl.arange(0, BD)
    inside = (row[:, None] < rows) & (column[None, :] < D)
    tl.store(Y + row[:, None] * D + column[None, :], values.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _rows_of(W, first, F: tl.constexpr, D: tl.constexpr, BU: tl.constexpr, BD: tl.constexpr):
    """The rows of hidden units [BU, BD] of W [F, D]; zero beyond."""
    unit, column = first + tl.arange(0, BU), tl.arange(0, BD)
    inside = (unit[:, None] < F) & (column[None, :] < D)
    return tl.load(W + unit[:, None] * D + column[None, :], mask=inside, other=0.0)


@triton.jit
def _biases(BIAS, first, F: tl.constexpr, BU: tl.constexpr):
    unit = first + tl.arange(0, BU)
    return tl.load(BIAS + unit, mask=unit < F, other=0.0).to(tl.float32)


@triton.jit
def small_width_forward(
    X, W_IN, B_IN, W_OUT, Y, rows,
    D: tl.constexpr, O: tl.constexpr, F: tl.constexpr, BD: tl.constexpr, BO: tl.constexpr, BU: tl.constexpr,
    R: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Y [rows, O]; W_IN [2F, D] has the rows of the gate first, or is [F, D] without one; W_OUT is [F, O]."""
    x = _tile(X, tl.program_id(0), rows, R, D, BD)
    y = tl.zeros((R, BO), tl.float32)
    for first in range(0, F, BU):
        gate = tl.dot(x, tl.trans(_rows_of(W_IN, first, F, D, BU, BD))) + _biases(B_IN, first, F, BU)[None, :]
        hidden, _ = activated(gate, ACTIVATION)
        if GATED:
            up = tl.dot(x, tl.trans(_rows_of(W_IN + F * D, first, F, D, BU, BD)))
            hidden *= up + _biases(B_IN + F, first, F, BU)[None, :]
        y = tl.dot(hidden.to(x.dtype), _rows_of(W_OUT, first, F, O, BU, BO), y)
    _store_tile(Y, y, tl.program_id(0), rows, R, O, BO)


@triton.jit
def small_width_dx(
    X, W_IN, B_IN, W_OUT, DY, DX, rows,
    D: tl.constexpr, O: tl.constexpr, F: tl.constexpr, BD: tl.constexpr, BO: tl.constexpr, BU: tl.constexpr,
    R: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """DX [rows, D] from DY [rows, O]."""
    x = _tile(X, tl.program_id(0), rows, R, D, BD)
    dy = _tile(DY, tl.program_id(0), rows, R, O, BO)
    dx = tl.zeros((R, BD), tl.float32)
    for first in range(0, F, BU):
        weights = _rows_of(W_IN, first, F, D, BU, BD)
        gate = tl.dot(x, tl.trans(weights)) + _biases(B_IN, first, F, BU)[None, :]
        value, slope = activated(gate, ACTIVATION)
        dhidden = tl.dot(dy, tl.trans(_rows_of(W_OUT, first, F, O, BU, BO)))
        dgate = dhidden * slope
        if GATED:
            up_weights = _rows_of(W_IN + F * D, first, F, D, BU, BD)
            dgate *= tl.dot(x, tl.trans(up_weights)) + _biases(B_IN + F, first, F, BU)[None, :]
            dx = tl.dot((dhidden * value).to(x.dtype), up_weights, dx)
        dx = tl.dot(dgate.to(x.dtype), weights, dx)
    _store_tile(DX, dx, tl.program_id(0), rows, R, D, BD)


@triton.jit
def small_width_dweights(
    X, W_IN, B_IN, W_OUT, DY, SHARES, rows,
    D: tl.constexpr, O: tl.constexpr, F: tl.constexpr, BD: tl.constexpr, BO: tl.constexpr, BU: tl.constexpr,
    R: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """This program's share of the gradients of W_IN, B_IN and W_OUT, one after the other in a row of SHARES, for its
    block of hidden units. Tiles are computed transposed, [units, tokens]."""
    first = tl.program_id(0) * BU
    weights, bias = _rows_of(W_IN, first, F, D, BU, BD), _biases(B_IN, first, F, BU)
    out_weights = _rows_of(W_OUT, first, F, O, BU, BO)
    dweights = tl.zeros((BU, BD), tl.float32)
    dout_weights = tl.zeros((BU, BO), tl.float32)
    dbias = tl.zeros((BU,), tl.float32)
    if GATED:
        up_weights, up_bias = _rows_of(W_IN + F * D, first, F, D, BU, BD), _biases(B_IN + F, first, F, BU)
        dup_weights = tl.zeros((BU, BD), tl.float32)
        dup_bias = tl.zeros((BU,), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(rows, R), tl.num_programs(1)):
        x = _tile(X, tile, rows, R, D, BD)
        dy = _tile(DY, tile, rows, R, O, BO)
        value, slope = activated(tl.dot(weights, tl.trans(x)) + bias[:, None], ACTIVATION)
        dhidden = tl.dot(out_weights, tl.trans(dy))
        dgate, hidden = dhidden * slope, value
        if GATED:
            up = tl.dot(up_weights, tl.trans(x)) + up_bias[:, None]
            dgate *= up
            hidden *= up
            dup = dhidden * value
            dup_weights = tl.dot(dup.to(x.dtype), x, dup_weights)
            dup_bias += tl.sum(dup, 1)
        dweights = tl.dot(dgate.to(x.dtype), x, dweights)
        dout_weights = tl.dot(hidden.to(x.dtype), dy, dout_weights)
        dbias += tl.sum(dgate, 1)
    unit, column, row = first + tl.arange(0, BU), tl.arange(0, BD), tl.arange(0, BO)
    PARTS: tl.constexpr = 2 if GATED else 1
    share = SHARES + tl.program_id(1) * (F * (PARTS * (D + 1) + O))
    inside = (unit[:, None] < F) & (column[None, :] < D)
    tl.store(share + unit[:, None] * D + column[None, :], dweights, mask=inside)
    tl.store(share + PARTS * F * D + unit, dbias, mask=unit < F)
    if GATED:
        tl.store(share + F * D + unit[:, None] * D + column[None, :], dup_weights, mask=inside)
        tl.store(share + 2 * F * D + F + unit, dup_bias, mask=unit < F)
    inside = (unit[:, None] < F) & (row[None, :] < O)
    tl.store(share + PARTS * F * (D + 1) + unit[:, None] * O + row[None, :], dout_weights, mask=inside)


def _options(x: Tensor, weight_in: Tensor, weight_out: Tensor, activation: int, units: int) -> dict[str, Any]:
    """How a kernel is compiled that takes so many hidden units at a time."""
    hidden, out = weight_out.shape
    size = x.shape[1]
    return {
        "D": size,
        "O": out,
        "F": hidden,
        "BD": power_of_two(size),
        "BO": power_of_two(out),
        "BU": units,
        "R": _ROWS,
        "ACTIVATION": activation,
        "GATED": weight_in.shape[0] == 2 * hidden,
        "num_warps": 4,
        "num_stages": 2,
    }


@kernel_op("transnormer::small_width_layer")
def _op(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: int) -> Tensor:
    """The layer of x [rows, D], weight_out being [F, D_out]: [rows, D_out]."""
    y = torch.empty((x.shape[0], weight_out.shape[1]), dtype=x.dtype, device=x.device)
    if x.shape[0]:
        units = _UNITS if max(x.shape[1], weight_out.shape[1]) <= WIDEST else _UNITS_OF_WIDE
        options = _options(x, weight_in, weight_out, activation, units)
        grid = (triton.cdiv(x.shape[0], _ROWS),)
        launch(small_width_forward, grid)(x, weight_in, bias_in, weight_out, y, x.shape[0], **options)
    return y


@_op.register_fake
def _(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: int) -> Tensor:
    return x.new_empty((x.shape[0], weight_out.shape[1]))


@kernel_op("transnormer::small_width_layer_dx")
def _dx_op(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, dy: Tensor, activation: int) -> Tensor:
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.shape[0]:
        grid, options = (triton.cdiv(x.shape[0], _ROWS),), _options(x, weight_in, weight_out, activation, _UNITS)
        small_width_dx[grid](x, weight_in, bias_in, weight_out, dy, dx, x.shape[0], **options)
    return dx


@_dx_op.register_fake
def _(x: Tensor, *call: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@kernel_op("transnormer::small_width_layer_dweights")
def _dweights_op(
    x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, dy: Tensor, activation: int
) -> Tensor:
    """The gradients of weight_in, bias_in and weight_out one after the other, in float32."""
    rows = x.shape[0]
    blocks = triton.cdiv(weight_out.shape[0], _UNITS_OF_WEIGHTS)
    programs = min(triton.cdiv(rows, _ROWS), _PROGRAMS // blocks)
    shares = torch.empty((programs, _numbers(weight_in, weight_out)), dtype=torch.float32, device=x.device)
    if rows:
        options = _options(x, weight_in, weight_out, activation, _UNITS_OF_WEIGHTS)
        small_width_dweights[blocks, programs](x, weight_in, bias_in, weight_out, dy, shares, rows, **options)
    return shares.sum(dim=0)


@_dweights_op.register_fake
def _(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, *call: Any) -> Tensor:
    return x.new_empty(_numbers(weight_in, weight_out), dtype=torch.float32)


def _numbers(weight_in: Tensor, weight_out: Tensor) -> int:
    return weight_in.numel() + weight_in.shape[0] + weight_out.numel()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.activation = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight_in, bias_in, weight_out = tensors = ctx.saved_tensors
    call = (*tensors, dy.contiguous(), ctx.activation)
    dx = _dx_op(*call) if ctx.needs_input_grad[0] else None
    if not any(ctx.needs_input_grad[1:]):
        return dx, None, None, None, None
    lengths = (weight_in.numel(), bias_in.numel(), weight_out.numel())
    dweight_in, dbias_in, dweight_out = _dweights_op(*call).to(x.dtype).split(lengths)
    return dx, dweight_in.view_as(weight_in), dbias_in, dweight_out.view_as(weight_out), None


_op.register_autograd(_differentiate, setup_context=_save)


def small_width_layer(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: int) -> Tensor:
    """(act(gate) ⊙ up)·weight_outᵀ for weight_in [2F, D], act(x·weight_inᵀ + bias_in)·weight_outᵀ for [F, D]."""
    rows, *weights = (t.contiguous() for t in (x.reshape(-1, x.shape[-1]), weight_in, bias_in, weight_out.mT))
    return _op(rows, *weights, activation).reshape(*x.shape[:-1], weight_out.shape[0])
