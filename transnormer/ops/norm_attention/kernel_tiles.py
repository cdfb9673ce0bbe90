"""The pieces all NormAttention kernels are made of: loads, φ and its slope, masks, and the states between chunks."""

from __future__ import annotations

import triton
import triton.language as tl

PHI_CODES = {"identity": 0, "elu": 1, "1+elu": 2}
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def phi(x, columns, PHI: tl.constexpr, D: tl.constexpr, FILLED: tl.constexpr):
    """φ of a tile; columns that only fill up the tile stay zero, which 1+elu alone would not leave so."""
    if PHI == 0:
        return x
    # 1+elu is max(x, 0) + exp(min(x, 0)): no comparison and half the instructions of a choice between two branches.
    wide = x.to(tl.float32)
    mapped = tl.maximum(wide, 0.0, propagate_nan=tl.PropagateNan.ALL) + phi_slope(x, PHI)
    if PHI == 1:
        mapped = mapped - 1.0
    elif FILLED:
        mapped = tl.where(columns[None, :] < D, mapped, 0.0)
    return mapped.to(x.dtype)


@triton.jit
def phi_slope(x, PHI: tl.constexpr):
    """φ'(x), float32: exp(min(x, 0)) for both."""
    wide = x.to(tl.float32)
    if PHI == 0:
        return tl.full(wide.shape, 1.0, tl.float32)
    return tl.exp2(tl.minimum(wide, 0.0) * _LOG2_E)


@triton.jit
def load_rows(base, rows, columns, row_stride, inside, width: tl.constexpr):
    """A tile of a tensor; what lies outside of it is zero."""
    seen = inside[:, None] & (columns[None, :] < width)
    return tl.load(base + rows[:, None] * row_stride + columns[None, :], mask=seen, other=0.0)


@triton.jit
def store_rows(base, rows, columns, row_stride, inside, width: tl.constexpr, tile):
    seen = inside[:, None] & (columns[None, :] < width)
    tl.store(base + rows[:, None] * row_stride + columns[None, :], tile.to(base.dtype.element_ty), mask=seen)


@triton.jit
def store_squares(base, rows, inside, tile, WANTED: tl.constexpr):
    """Σ tile² of each row, of float32 numbers that nobody has rounded yet."""
    if WANTED:
        tl.store(base + rows, tl.sum(tile * tile, 1), mask=inside)


@triton.jit
def load_gradient(
    DO, OUT, DSQUARES, batch, head, rows, columns, inside, T, H, o_b, o_t, o_h, s_b, s_t, s_h,
    E: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """The gradient of the output: do, and 2·out·dsquares where a sum of its squares was used as well."""
    do = load_rows(DO + batch * o_b + head * o_h, rows, columns, o_t, inside, E)
    if SQUARED:
        out = load_rows(OUT + (batch * T * H + head) * E, rows, columns, H * E, inside, E)
        twice = 2.0 * tl.load(DSQUARES + batch * s_b + head * s_h + rows * s_t, mask=inside, other=0.0)
        do = (do.to(tl.float32) + twice[:, None] * out.to(tl.float32)).to(do.dtype)
    return do


@triton.jit
def chunk_rows(chunk, T, MASK, batch, mask_b, C: tl.constexpr, HAS_MASK: tl.constexpr):
    """Rows of a chunk, which of them exist, and which of those are real tokens."""
    rows = chunk * C + tl.arange(0, C).to(tl.int64)
    inside = rows < T
    real = inside
    if HAS_MASK:
        real = inside & (tl.load(MASK + batch * mask_b + rows, mask=inside, other=0) != 0)
    return rows, inside, real


@triton.jit
def keep(tile, real, NEEDED: tl.constexpr):
    """Zero the rows of a tile that are not real tokens (φ maps the zeros outside the sequence to something else)."""
    if NEEDED:
        return tl.where(real[:, None], tile, 0.0).to(tile.dtype)
    return tile


@triton.jit
def load_state(base, d, e, D: tl.constexpr, E: tl.constexpr):
    """A state [D, E]; with d as [1, :] and e as [:, 1] its transpose, read as such from memory."""
    return tl.load(base + d * E + e, mask=(d < D) & (e < E), other=0.0)


@triton.jit
def store_state(base, d, e, D: tl.constexpr, E: tl.constexpr, tile):
    tl.store(base + d[:, None] * E + e[None, :], tile, mask=(d[:, None] < D) & (e[None, :] < E))


@triton.jit
def part_sums(
    X, Y, SUMS, OUT, DSQUARES, MASK, T, chunks, chunks_per_part,
    x_b, x_t, x_h, y_b, y_t, y_h, s_b, s_t, s_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)ᵀy over each part: kᵀv for the states, qᵀdo for their gradients."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    total = tl.zeros((BD, BE), tl.float32)
    for chunk in range(part * chunks_per_part, min((part + 1) * chunks_per_part, chunks)):
        rows, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        x = load_rows(X + batch * x_b + head * x_h, rows, d, x_t, inside, D)
        x = keep(phi(x, d, PHI, D, D < BD), real, True)
        y = load_gradient(
            Y, OUT, DSQUARES, batch, head, rows, e, inside, T, H, y_b, y_t, y_h, s_b, s_t, s_h, E, SQUARED
        )
        total = tl.dot(tl.trans(x), y, total, input_precision="ieee")
    store_state(SUMS + ((batch * H + head) * P + part) * D * E, d, e, D, E, total)


@triton.jit
def scan_parts(SUMS, START, BOUNDS, P, size, STARTS_AT_ZERO: tl.constexpr, REVERSED: tl.constexpr, BLOCK: tl.constexpr):
    """States at the P + 1 borders of the parts, from START and the sums of the parts; REVERSED begins at the end."""
    pair = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    if STARTS_AT_ZERO:
        state = tl.zeros((BLOCK,), tl.float32)
    else:
        state = tl.load(START + pair * size + at, mask=inside, other=0.0)
    for step in range(P):
        part = P - 1 - step if REVERSED else step
        border = part + 1 if REVERSED else part
        tl.store(BOUNDS + (pair * (P + 1) + border) * size + at, state, mask=inside)
        state += tl.load(SUMS + (pair * P + part) * size + at, mask=inside, other=0.0)
    tl.store(BOUNDS + (pair * (P + 1) + (0 if REVERSED else P)) * size + at, state, mask=inside)
