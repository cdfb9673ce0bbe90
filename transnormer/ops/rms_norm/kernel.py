"""RMSNorm in Triton: a row is read once and written once, and its backward reads one row more.

Without a gain that row is the result (see saved_output.py), which may be rounded to half the bytes of the input; with
one it is the input, whose scale is computed again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.launch import cannot_launch, kernel_op, power_of_two

MAX_WIDTH = 8192


def why_not(*, device: str, x: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, x, None, MAX_WIDTH)


@triton.jit
def _forward(X, WEIGHT, Y, SCALE, rows, eps, N: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, GAIN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, BN)
    inside = (row[:, None] < rows) & (column[None, :] < N)
    at = row[:, None] * N + column[None, :]
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    y = x * scale[:, None]
    if GAIN:
        y = y * tl.load(WEIGHT + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    else:
        tl.store(SCALE + row, scale, mask=row < rows)
    tl.store(Y + at, y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    KEPT, SCALE, WEIGHT, DY, DX, DWEIGHT, rows, eps,
    N: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, GAIN: tl.constexpr,
):  # fmt: skip
    """dx = r(g − y·mean(yg)) with y = xr, g = dy·weight; DWEIGHT [programs, N] takes this program's share of Σ dy·y.

    KEPT is y, or x with a gain.
    """
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, BN)
    inside = (row[:, None] < rows) & (column[None, :] < N)
    at = row[:, None] * N + column[None, :]
    normed = tl.load(KEPT + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
    if GAIN:
        scale = tl.rsqrt(tl.sum(normed * normed, 1) / N + eps)[:, None]
        normed = normed * scale
        tl.store(DWEIGHT + tl.program_id(0).to(tl.int64) * N + column, tl.sum(gradient * normed, 0), mask=column < N)
        gradient = gradient * tl.load(WEIGHT + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    else:
        scale = tl.load(SCALE + row, mask=row < rows, other=0.0)[:, None]
    dx = scale * (gradient - normed * (tl.sum(normed * gradient, 1) / N)[:, None])
    tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=inside)


def _launch(x: Tensor, weight: Tensor | None) -> tuple[int, dict[str, Any]]:
    """Number of programs and compile-time constants: about 4096 numbers a program."""
    width = x.shape[-1]
    block = power_of_two(width)
    rows = max(1, 4096 // block)
    programs = triton.cdiv(x.numel() // width, rows)
    return programs, {"N": width, "BN": block, "BR": rows, "GAIN": weight is not None, "num_warps": 4}


def _scales(x: Tensor, weight: Tensor | None) -> Tensor:
    """An uninitialised 1/rms of each row; empty with a gain, whose backward computes it again."""
    rows = x.numel() // x.shape[-1]
    return torch.empty(rows if weight is None else 0, dtype=torch.float32, device=x.device)


@kernel_op("transnormer::rms_norm")
def _op(x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The result, and 1/rms of each row where the backward needs it."""
    y, scales = torch.empty(x.shape, dtype=dtype, device=x.device), _scales(x, weight)
    programs, options = _launch(x, weight)
    _forward[(programs,)](x, weight, y, scales, x.numel() // x.shape[-1], eps, **options)
    return y, scales


@_op.register_fake
def _(x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape, dtype=dtype, device=x.device), _scales(x, weight)


@kernel_op("transnormer::rms_norm_backward")
def _backward_op(
    kept: Tensor, scales: Tensor, weight: Tensor | None, dy: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """dx in `dtype`, and dweight as float32 [N] (zeros without a gain), summed over programs in a fixed order."""
    dx = torch.empty(kept.shape, dtype=dtype, device=kept.device)
    programs, options = _launch(kept, weight)
    width = kept.shape[-1]
    shares = torch.empty((programs if weight is not None else 0, width), dtype=torch.float32, device=kept.device)
    rows = kept.numel() // width
    _backward[(programs,)](kept, scales, weight, dy.contiguous(), dx, shares, rows, eps, **options)
    return dx, shares.sum(dim=0)


@_backward_op.register_fake
def _(
    kept: Tensor, scales: Tensor, weight: Tensor | None, dy: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    dx = torch.empty(kept.shape, dtype=dtype, device=kept.device)
    return dx, kept.new_empty(kept.shape[-1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, float, torch.dtype], output: tuple[Tensor, Tensor]) -> None:
    x, weight, ctx.eps, _ = inputs
    y, scales = output
    ctx.dtype = x.dtype
    ctx.set_materialize_grads(False)  # none comes for the scales
    ctx.save_for_backward(y if weight is None else x, scales, weight)


def _differentiate(ctx: Any, dy: Tensor, _: None) -> tuple[Tensor | None, ...]:
    kept, scales, weight = ctx.saved_tensors
    dx, dweight = _backward_op(kept, scales, weight, dy, ctx.eps, ctx.dtype)
    return dx, None if weight is None else dweight.to(weight.dtype), None, None


_op.register_autograd(_differentiate, setup_context=_save)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """The kernel behind `transnormer.ops.rms_norm`; its arguments have been checked there."""
    y, _ = _op(x.contiguous(), None if weight is None else weight.contiguous(), eps, dtype)
    return y
