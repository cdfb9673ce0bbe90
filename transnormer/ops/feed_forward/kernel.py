"""Feed-forward layers in Triton: of small width in one kernel, else the gated linear unit between cuBLAS's products.

The gated backward reads gate, up and the gradient of their product once. In the same pass it writes the gradients of
gate and up side by side, as the next products take them, the product itself over its gradient, and sums for the bias.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.autocast import in_autocast_dtype
from transnormer.ops.feed_forward.kernel_small_width import small_width_layer
from transnormer.ops.feed_forward.small_width import WIDEST, WIDEST_HIDDEN, is_small_width
from transnormer.ops.kernels.activations import ACTIVATION_CODES, activated
from transnormer.ops.kernels.launch import ANY_WIDTH, cannot_launch, kernel_op, power_of_two

# Numbers of a tile: each of 128 threads loads 16 bytes of bfloat16 at a time.
_TILE, _WARPS = 1024, 4
_MAX_COLUMNS, _MIN_COLUMNS = 128, 32
# Programs of the backward, each of which leaves sums to be added: 8 for each of an H200's 132 processors, and as few
# registers as let all of them work at once.
_PROGRAMS, _REGISTERS = 1024, 64
_MAX_GRID = 2**15  # in the second reflection CUDA allows 2**16 - 1


def why_not(
    *, device: str, x: Tensor | None = None, weight_out: Tensor | None = None, gated: bool = True, **_: Any
) -> str | None:
    """Why this call cannot run here, or None; without a gate only layers of small width have a kernel."""
    problem = cannot_launch(device, x, weight_out, ANY_WIDTH)
    if problem or gated or x is None or weight_out is None or is_small_width(x, weight_out, gated=False):
        return problem
    shape = f"{x.shape[-1]} -> {weight_out.shape[1]} -> {weight_out.shape[0]}"
    return f"the layer {shape} in {x.dtype}: kernels take half precision, {WIDEST} -> {WIDEST_HIDDEN} -> {WIDEST}"


@triton.jit
def _forward(
    GATE_UP, H, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr
):
    """h = act(gate)·up for GATE_UP [rows, 2·WIDTH], H [rows, WIDTH]; programs: blocks of columns × tiles of rows."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    for tile in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS).to(tl.int64)[:, None]
        inside = (row < rows) & (column < WIDTH)
        gate = tl.load(GATE_UP + row * (2 * WIDTH) + column, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(GATE_UP + row * (2 * WIDTH) + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        value, _ = activated(gate, ACTIVATION)
        tl.store(H + row * WIDTH + column, (value * up).to(H.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    GATE_UP, H, DGATE_UP, SHARES, rows,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """H holds dh and is left with h; SHARES [programs, 2·WIDTH] takes this program's share of Σ dgate and Σ dup."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    dgate_sum = tl.zeros((ROWS, COLUMNS), tl.float32)
    dup_sum = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(rows, ROWS), tl.num_programs(1)):
        row = tile * ROWS + tl.arange(0, ROWS).to(tl.int64)[:, None]
        inside = (row < rows) & (column < WIDTH)
        at = row * (2 * WIDTH) + column
        gate = tl.load(GATE_UP + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(GATE_UP + at + WIDTH, mask=inside, other=0.0).to(tl.float32)
        dh = tl.load(H + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        value, slope = activated(gate, ACTIVATION)
        dgate, dup = dh * up * slope, dh * value
        tl.store(H + row * WIDTH + column, (value * up).to(H.dtype.element_ty), mask=inside)
        tl.store(DGATE_UP + at, dgate.to(DGATE_UP.dtype.element_ty), mask=inside)
        tl.store(DGATE_UP + at + WIDTH, dup.to(DGATE_UP.dtype.element_ty), mask=inside)
        dgate_sum += dgate
        dup_sum += dup
    at = tl.program_id(1) * (2 * WIDTH) + tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    real = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS) < WIDTH
    tl.store(SHARES + at, tl.sum(dgate_sum, 0), mask=real)
    tl.store(SHARES + at + WIDTH, tl.sum(dup_sum, 0), mask=real)


def _launch(gate_up: Tensor, activation: int, most: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid, of at most about `most` programs, and compile-time constants."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    # Whole blocks where the width allows it, so that no thread idles.
    columns = math.gcd(width, _MAX_COLUMNS)
    if columns < _MIN_COLUMNS:
        columns = min(_MAX_COLUMNS, power_of_two(width))
    tile = _TILE // columns
    blocks = triton.cdiv(width, columns)
    options = {"WIDTH": width, "ROWS": tile, "COLUMNS": columns, "ACTIVATION": activation, "num_warps": _WARPS}
    return (blocks, min(triton.cdiv(rows, tile), max(1, most // blocks))), options


@kernel_op("transnormer::glu")
def _op(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: int) -> tuple[Tensor, Tensor]:
    """y [rows, D_out], and gate and up [rows, 2F] for the backward."""
    gate_up = F.linear(x, weight_in, bias_in)
    hidden = torch.empty((x.shape[0], weight_out.shape[1]), dtype=x.dtype, device=x.device)
    grid, options = _launch(gate_up, activation, _MAX_GRID)
    _forward[grid](gate_up, hidden, x.shape[0], **options)
    return F.linear(hidden, weight_out), gate_up


@_op.register_fake
def _(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: int) -> tuple[Tensor, Tensor]:
    rows = x.shape[0]
    return x.new_empty((rows, weight_out.shape[0])), x.new_empty((rows, weight_in.shape[0]))


@kernel_op("transnormer::glu_backward")
def _backward_op(
    x: Tensor,
    gate_up: Tensor,
    weight_in: Tensor,
    weight_out: Tensor,
    dy: Tensor,
    activation: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dx, dweight_in, dbias_in as float32, and dweight_out; those that `needs` does not ask for are empty."""
    needs_x, needs_weight_in, needs_bias_in, needs_weight_out = needs
    hidden = dy @ weight_out  # its gradient, over which the kernel writes it
    dgate_up = torch.empty(gate_up.shape, dtype=gate_up.dtype, device=gate_up.device)
    grid, options = _launch(gate_up, activation, _PROGRAMS)
    shares = torch.empty((grid[1], gate_up.shape[1]), dtype=torch.float32, device=gate_up.device)
    _backward[grid](gate_up, hidden, dgate_up, shares, gate_up.shape[0], **options, maxnreg=_REGISTERS)
    dweight_out = dy.mT @ hidden if needs_weight_out else dy.new_empty(0)
    del hidden  # before the other products take memory
    return (
        dgate_up @ weight_in if needs_x else dy.new_empty(0),
        dgate_up.mT @ x if needs_weight_in else dy.new_empty(0),
        shares.sum(dim=0) if needs_bias_in else shares.new_empty(0),
        dweight_out,
    )


@_backward_op.register_fake
def _(
    x: Tensor,
    gate_up: Tensor,
    weight_in: Tensor,
    weight_out: Tensor,
    dy: Tensor,
    activation: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = (x.shape, weight_in.shape, weight_in.shape[:1], weight_out.shape)
    dx, dweight_in, dbias_in, dweight_out = (
        torch.empty(shape if needed else (0,), dtype=dtype, device=x.device)
        for shape, needed, dtype in zip(shapes, needs, (x.dtype, x.dtype, torch.float32, x.dtype), strict=True)
    )
    return dx, dweight_in, dbias_in, dweight_out


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight_in, bias_in, weight_out, ctx.activation = inputs
    gate_up = output[1]
    ctx.bias_dtype = bias_in.dtype
    ctx.mark_non_differentiable(gate_up)
    # Otherwise the backward pass gets zeros of the size of gate and up.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, gate_up, weight_in, weight_out)


def _differentiate(ctx: Any, dy: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 5
    needs = list(ctx.needs_input_grad[:4])
    dx, dweight_in, dbias_in, dweight_out = _backward_op(*ctx.saved_tensors, dy, ctx.activation, needs)
    gradients = (dx, dweight_in, dbias_in.to(ctx.bias_dtype), dweight_out)
    return *(gradient if needed else None for gradient, needed in zip(gradients, needs, strict=True)), None


_op.register_autograd(_differentiate, setup_context=_save)


def glu(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, activation: str) -> Tensor:
    """The kernel behind `transnormer.ops.feed_forward`; its arguments have been checked there."""
    # Outside the op, so that the gradients come back in the dtypes of these.
    x, weight_in, bias_in, weight_out = (in_autocast_dtype(tensor) for tensor in (x, weight_in, bias_in, weight_out))
    if is_small_width(x, weight_out, gated=True):
        return small_width_layer(x, weight_in, bias_in, weight_out, ACTIVATION_CODES[activation])
    y, _ = _op(x.reshape(-1, x.shape[-1]), weight_in, bias_in, weight_out, ACTIVATION_CODES[activation])
    return y.reshape(*x.shape[:-1], weight_out.shape[0])


def mlp(x: Tensor, weight_in: Tensor, bias_in: Tensor, weight_out: Tensor, bias_out: Tensor, activation: str) -> Tensor:
    """The kernel behind `transnormer.ops.mlp`; its arguments have been checked there."""
    x, weight_in, bias_in, weight_out = (in_autocast_dtype(tensor) for tensor in (x, weight_in, bias_in, weight_out))
    y = small_width_layer(x, weight_in, bias_in, weight_out, ACTIVATION_CODES[activation])
    return y + bias_out.to(y.dtype)  # a compiler fuses it with the dropout and the residual that follow
