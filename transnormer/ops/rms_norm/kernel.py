"""RMSNorm in Triton: a row is read once and written once; the backward reads it once more and recomputes the scale."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.launch import cannot_launch, power_of_two

MAX_WIDTH = 8192


def why_not(*, device: str, x: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, x, None, MAX_WIDTH)


@triton.jit
def _forward(X, WEIGHT, Y, rows, eps, N: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, GAIN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, BN)
    inside = (row[:, None] < rows) & (column[None, :] < N)
    at = row[:, None] * N + column[None, :]
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 1) / N + eps)[:, None]
    if GAIN:
        y = y * tl.load(WEIGHT + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    tl.store(Y + at, y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    X, WEIGHT, DY, DX, DWEIGHT, rows, eps, N: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, GAIN: tl.constexpr
):
    """dx = r(g − x̂·mean(x̂g)) with x̂ = xr, g = dy·weight; DWEIGHT [programs, N] takes this program's share of Σ dy·x̂."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    column = tl.arange(0, BN)
    inside = (row[:, None] < rows) & (column[None, :] < N)
    at = row[:, None] * N + column[None, :]
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    gradient = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / N + eps)[:, None]
    normed = x * scale
    if GAIN:
        tl.store(DWEIGHT + tl.program_id(0).to(tl.int64) * N + column, tl.sum(gradient * normed, 0), mask=column < N)
        gradient = gradient * tl.load(WEIGHT + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    dx = scale * (gradient - normed * (tl.sum(normed * gradient, 1) / N)[:, None])
    tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=inside)


def _launch(x: Tensor, weight: Tensor | None) -> tuple[int, dict[str, Any]]:
    """Number of programs and compile-time constants: about 4096 numbers a program."""
    width = x.shape[-1]
    block = power_of_two(width)
    rows = max(1, 4096 // block)
    programs = triton.cdiv(x.numel() // width, rows)
    return programs, {"N": width, "BN": block, "BR": rows, "GAIN": weight is not None, "num_warps": 4}


@torch.library.custom_op("transnormer::rms_norm", mutates_args=())
def _op(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    programs, options = _launch(x, weight)
    _forward[(programs,)](x, weight, y, x.numel() // x.shape[-1], eps, **options)
    return y


@_op.register_fake
def _(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("transnormer::rms_norm_backward", mutates_args=())
def _backward_op(x: Tensor, weight: Tensor | None, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """dx, and dweight as float32 [N] (empty without a gain), summed over programs in a fixed order."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    programs, options = _launch(x, weight)
    shares = torch.empty((programs if weight is not None else 0, x.shape[-1]), dtype=torch.float32, device=x.device)
    _backward[(programs,)](x, weight, dy.contiguous(), dx, shares, x.numel() // x.shape[-1], eps, **options)
    return dx, shares.sum(dim=0)


@_backward_op.register_fake
def _(x: Tensor, weight: Tensor | None, dy: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[-1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, float], output: Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx, dweight = _backward_op(x, weight, dy, ctx.eps)
    return dx, None if weight is None else dweight.to(weight.dtype), None


_op.register_autograd(_differentiate, setup_context=_save)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """The kernel behind `transnormer.ops.rms_norm`; its arguments have been checked there."""
    return _op(x.contiguous(), weight, eps)
