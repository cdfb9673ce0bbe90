"""Random features in Triton: x is read once, its features are written once, and the backward computes them again.

Exponents need more than the eight bits of a bfloat16 weight: the weight is the sum of two such, and one product of
tensor cores is made with each. Exponents never lie in memory.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.launch import (
    as_mask_integers,
    cannot_launch,
    interpreting,
    kernel_op,
    near_rows,
    power_of_two,
)
from transnormer.ops.kernels.shared_memory import shared_memory_bytes

_TOKEN, _SEQUENCE, _NONE, _BATCH = range(4)  # to the kernels the last is as the second
_SCOPES = {"token": _TOKEN, "sequence": _SEQUENCE, "none": _NONE, "batch": _BATCH}
MAX_HEAD_DIM = 128
MAX_FEATURES = 256
_ROWS = 64
# Numbers of shared memory that the backward takes for each one of the weight, at most.
_KEPT_IN_SHARED_MEMORY = 3
# With more weights than these, twice as many warps share the registers.
_FEW_WEIGHTS = 128 * 64


def why_not(*, device: str, x: Tensor | None = None, weight: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    problem = cannot_launch(device, x, None, MAX_HEAD_DIM)
    if problem is None and x is not None and x.dtype == torch.float32 and not interpreting():
        return "dtype float32; the kernel takes bfloat16 and float16"
    if problem is not None or x is None or weight is None:
        return problem
    features = weight.shape[0]
    if features > MAX_FEATURES:
        return f"{features} features are above {MAX_FEATURES}"
    needed = _KEPT_IN_SHARED_MEMORY * power_of_two(features) * power_of_two(x.shape[-1]) * x.element_size()
    if needed > shared_memory_bytes(x.device):
        return f"a weight of {features} features for heads of {x.shape[-1]} does not fit shared memory"
    return None


@triton.jit
def _tokens(X, MASK, length, xb, xt, xh, mb, R: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, MASKED: tl.constexpr):
    """Rows of one sequence and head [R, BD], and which of them are real tokens."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, BD)
    real = row < length
    if MASKED:
        real = real & (tl.load(MASK + tl.program_id(1).to(tl.int64) * mb + row, mask=real, other=0) != 0)
    start = X + tl.program_id(1).to(tl.int64) * xb + tl.program_id(2).to(tl.int64) * xh
    inside = real[:, None] & (column[None, :] < D)
    return tl.load(start + row.to(tl.int64)[:, None] * xt + column[None, :], mask=inside, other=0.0), real


@triton.jit
def _weights(W, M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr):
    """One of the two parts of the weight [BM, BD]."""
    feature, column = tl.arange(0, BM), tl.arange(0, BD)
    inside = (feature[:, None] < M) & (column[None, :] < D)
    return tl.load(W + feature[:, None] * D + column[None, :], mask=inside, other=0.0)


@triton.jit
def _exponents(
    x, HIGH, LOW, OFFSET, scale,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, SHIFTED: tl.constexpr,
):  # fmt: skip
    """Wx̂ + offset [R, BM], minus infinity in columns that are no features."""
    products = tl.dot(x, tl.trans(_weights(LOW, M, D, BM, BD)))
    products = tl.dot(x, tl.trans(_weights(HIGH, M, D, BM, BD)), products) * scale
    feature = tl.arange(0, BM)
    if SHIFTED:
        products += tl.load(OFFSET + feature, mask=feature < M, other=0.0)[None, :]
    return tl.where(feature[None, :] < M, products, float("-inf"))


@triton.jit
def _exponentials(exponents, x, LARGEST, scale, SCOPE: tl.constexpr):
    """φ - ε. SCOPE 0: less the greatest of the row, 1: less what LARGEST [B, H] says, 2: less nothing."""
    wide = x.to(tl.float32)
    less = tl.sum(wide * wide, 1) * (scale * scale / 2)
    if SCOPE == 0:
        less += tl.max(exponents, 1)
    if SCOPE == 1:
        less += tl.load(LARGEST + tl.program_id(1) * tl.num_programs(2) + tl.program_id(2))
    return tl.exp(exponents - less[:, None])


@triton.jit
def _largest(
    X, HIGH, LOW, OFFSET, MASK, LARGEST, WHERE, length, xb, xt, xh, mb, scale,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, SHIFTED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The greatest exponent of a program's tokens, into LARGEST [B, H, programs], and into WHERE its index."""
    x, real = _tokens(X, MASK, length, xb, xt, xh, mb, R, D, BD, MASKED)
    exponents = _exponents(x, HIGH, LOW, OFFSET, scale, M, D, BM, BD, SHIFTED)
    exponents = tl.where(real[:, None], exponents, float("-inf"))
    greatest = tl.max(exponents)
    row, feature = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, BM)
    number = row[:, None] * M + feature[None, :]
    first = tl.min(tl.where(exponents == greatest, number, 2147483647))
    at = (tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(LARGEST + at, greatest)
    tl.store(WHERE + at, first)


@triton.jit
def _forward(
    X, HIGH, LOW, OFFSET, LARGEST, MASK, Y, length, xb, xt, xh, mb, scale, epsilon,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, SHIFTED: tl.constexpr,
    MASKED: tl.constexpr, SCOPE: tl.constexpr,
):  # fmt: skip
    x, real = _tokens(X, MASK, length, xb, xt, xh, mb, R, D, BD, MASKED)
    exponents = _exponents(x, HIGH, LOW, OFFSET, scale, M, D, BM, BD, SHIFTED)
    y = _exponentials(exponents, x, LARGEST, scale, SCOPE) + epsilon
    y = tl.where(real[:, None], y, 0.0)
    row, feature = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, BM)
    at = (tl.program_id(1).to(tl.int64) * length + row[:, None]) * tl.num_programs(2) + tl.program_id(2)
    inside = (row[:, None] < length) & (feature[None, :] < M)
    tl.store(Y + at * M + feature[None, :], y.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    X, HIGH, LOW, OFFSET, LARGEST, WHERE, MASK, DY, DX, SUMS, KEPT, length, xb, xt, xh, mb, scale,
    M: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, R: tl.constexpr, SHIFTED: tl.constexpr,
    MASKED: tl.constexpr, SCOPE: tl.constexpr,
):  # fmt: skip
    """dx = scale·(Wᵀg - x̂·Σg) with g = dφ·(φ - ε); the greatest exponent of a token takes -Σg with it.

    That of a sequence is in another program's token: here it is constant, SUMS [B, H, programs] takes Σg, and KEPT
    [B, H, D] the dx of the token at WHERE before it is rounded.
    """
    x, real = _tokens(X, MASK, length, xb, xt, xh, mb, R, D, BD, MASKED)
    exponents = _exponents(x, HIGH, LOW, OFFSET, scale, M, D, BM, BD, SHIFTED)
    y = _exponentials(exponents, x, LARGEST, scale, SCOPE)
    row, feature, column = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, BM), tl.arange(0, BD)
    at = (tl.program_id(1).to(tl.int64) * length + row[:, None]) * tl.num_programs(2) + tl.program_id(2)
    inside = real[:, None] & (feature[None, :] < M)
    dy = tl.load(DY + at * M + feature[None, :], mask=inside, other=0.0).to(tl.float32)
    gradient = tl.where(real[:, None], dy * y, 0.0)
    total = tl.sum(gradient, 1)
    if SCOPE == 0:
        greatest = exponents == tl.max(exponents, 1)[:, None]
        share = total / tl.sum(greatest.to(tl.float32), 1)
        gradient = tl.where(greatest, gradient - share[:, None], gradient)
    if SCOPE == 1:
        at_sum = (tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0) + tl.program_id(0)
        tl.store(SUMS + at_sum, tl.sum(total))
    # Two parts, as of the weight: rounded once, the gradient of the greatest exponent would be off by more than dx is.
    half = gradient.to(x.dtype)
    rest = (gradient - half.to(tl.float32)).to(x.dtype)
    through = tl.dot(half, _weights(LOW, M, D, BM, BD))
    through = tl.dot(rest, _weights(HIGH, M, D, BM, BD), through)
    through = tl.dot(half, _weights(HIGH, M, D, BM, BD), through)
    dx = scale * (through - x.to(tl.float32) * (total * scale)[:, None])
    inside = (row[:, None] < length) & (column[None, :] < D)
    tl.store(DX + at * D + column[None, :], dx.to(DX.dtype.element_ty), mask=inside)
    if SCOPE == 1:
        sequence = tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)
        there = (row == tl.load(WHERE + sequence) // M)[:, None] & inside
        tl.store(KEPT + sequence * D + column[None, :] + tl.zeros((R, 1), tl.int32), dx, mask=there)


def _parts(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two half-precision matrices whose sum is the weight."""
    weight = weight.contiguous()
    high = weight.to(dtype)
    return high, (weight.to(torch.float32) - high.to(torch.float32)).to(dtype)


def _launch(
    x: Tensor, high: Tensor, offset: Tensor | None, mask: Tensor | None
) -> tuple[tuple[int, int, int], tuple[Any, ...], dict[str, Any]]:
    """The programs, the lengths and strides every kernel is told, and how it is compiled."""
    batch, length, heads, size = x.shape
    features, columns = power_of_two(high.shape[0]), power_of_two(size)
    options = {"M": high.shape[0], "D": size, "BM": features, "BD": columns, "R": _ROWS}
    options |= {"SHIFTED": offset is not None, "MASKED": mask is not None, "num_stages": 1}
    options["num_warps"] = 4 if features * columns <= _FEW_WEIGHTS else 8
    told = (length, *x.stride()[:3], 0 if mask is None else mask.stride(0))
    return (triton.cdiv(length, _ROWS), batch, heads), told, options


@kernel_op("transnormer::random_features_largest")
def _largest_op(
    x: Tensor, high: Tensor, low: Tensor, offset: Tensor | None, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The greatest exponent of each sequence and head [B, H], -inf where there is no token, and t·M + feature."""
    grid, told, options = _launch(x, high, offset, mask)
    largest = torch.empty((*x.shape[::2], grid[0]), dtype=torch.float32, device=x.device)
    where = torch.empty(largest.shape, dtype=torch.int32, device=x.device)
    _largest[grid](x, high, low, offset, mask, largest, where, *told, scale, **options)
    largest, program = largest.max(dim=-1, keepdim=True)
    return largest.squeeze(-1), where.gather(-1, program).squeeze(-1).long()


@_largest_op.register_fake
def _(x: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    largest = torch.empty(x.shape[::2], dtype=torch.float32, device=x.device)
    return largest, torch.empty(largest.shape, dtype=torch.long, device=x.device)


@kernel_op("transnormer::random_features")
def _op(
    x: Tensor,
    high: Tensor,
    low: Tensor,
    offset: Tensor | None,
    largest: Tensor | None,
    where: Tensor | None,
    mask: Tensor | None,
    scale: float,
    epsilon: float,
    scope: int,
) -> Tensor:
    """φ of x; `largest` and `where` [B, H] are the greatest exponent of each sequence's scope and its index there."""
    grid, told, options = _launch(x, high, offset, mask)
    y = torch.empty((*x.shape[:3], high.shape[0]), dtype=x.dtype, device=x.device)
    options["SCOPE"] = _SEQUENCE if scope == _BATCH else scope
    _forward[grid](x, high, low, offset, largest, mask, y, *told, scale, epsilon, **options)
    return y


@_op.register_fake
def _(x: Tensor, high: Tensor, *call: Any) -> Tensor:
    return torch.empty((*x.shape[:3], high.shape[0]), dtype=x.dtype, device=x.device)


@kernel_op("transnormer::random_features_backward")
def _backward_op(
    x: Tensor,
    high: Tensor,
    low: Tensor,
    offset: Tensor | None,
    largest: Tensor | None,
    where: Tensor | None,
    mask: Tensor | None,
    dy: Tensor,
    scale: float,
    scope: int,
) -> Tensor:
    grid, told, options = _launch(x, high, offset, mask)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    options["SCOPE"] = _SEQUENCE if scope == _BATCH else scope

    def launch(index: Tensor | None, sums: Tensor | None, kept: Tensor | None) -> None:
        gradients = (dy.contiguous(), dx, sums, kept)
        _backward[grid](x, high, low, offset, largest, index, mask, *gradients, *told, scale, **options)

    if where is None:
        launch(None, None, None)
        return dx
    sums = torch.empty((*x.shape[::2], grid[0]), dtype=torch.float32, device=x.device)
    kept = torch.empty((*x.shape[::2], x.shape[3]), dtype=torch.float32, device=x.device)
    # Among exponents that are no numbers there is no such index; the gradient is none either.
    index = where.clamp(0, x.shape[1] * high.shape[0] - 1)
    launch(index, sums, kept)
    totals = sums.sum(dim=-1)
    if scope == _BATCH:
        totals = torch.where(where >= 0, totals.sum(), 0.0)
    # The greatest exponent of a scope is subtracted from all: its token takes what they lose. That may be nearly all
    # that it had, so the difference is rounded and not its parts.
    token, feature = index // high.shape[0], index % high.shape[0]
    row, head = (torch.arange(size, device=x.device) for size in where.shape)
    weight = high[feature].float() + low[feature].float()
    dx[row[:, None], token, head] = (kept - (totals * scale).unsqueeze(-1) * weight).to(dx.dtype)
    return dx


@_backward_op.register_fake
def _(x: Tensor, *call: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale, _, ctx.scope = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return _backward_op(*ctx.saved_tensors, dy, ctx.scale, ctx.scope), *[None] * 9


_op.register_autograd(_differentiate, setup_context=_save)


def random_features(
    x: Tensor, weight: Tensor, scale: float, epsilon: float, scope: str, offset: Tensor | None, mask: Tensor | None
) -> Tensor:
    """The kernel behind `transnormer.ops.random_features`; its arguments have been checked there."""
    x, mask, parts = near_rows(x), as_mask_integers(mask), _parts(weight.detach(), x.dtype)
    offset = None if offset is None else offset.detach().to(torch.float32).contiguous()
    if scope in ("token", "none"):
        return _op(x, *parts, offset, None, None, mask, scale, epsilon, _SCOPES[scope])
    largest, where = _largest_op(x.detach(), *parts, offset, mask, scale)
    if scope == "batch":
        places = torch.arange(largest.numel(), device=x.device).view_as(largest)
        where = torch.where(places == largest.argmax(), where, -1)
        largest = largest.amax().expand(largest.shape)
    largest = largest.masked_fill(largest == -torch.inf, 0).contiguous()  # a sequence without tokens
    return _op(x, *parts, offset, largest, where, mask, scale, epsilon, _SCOPES[scope])
