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


# A walk computes the offsets of a tile from the first row of its chunk once, in 32 bits, which spares it registers.


@triton.jit
def tile_offsets(rows, columns, row_stride):
    return rows[:, None] * row_stride + columns[None, :]


@triton.jit
def load_tile(base, offsets, columns, inside, width: tl.constexpr, WHOLE: tl.constexpr, POLICY: tl.constexpr):
    """As `load_rows`; WHOLE: nothing lies outside, and nobody need look."""
    if WHOLE:
        return tl.load(base + offsets, eviction_policy=POLICY)
    seen = inside[:, None] & (columns[None, :] < width)
    return tl.load(base + offsets, mask=seen, other=0.0, eviction_policy=POLICY)


@triton.jit
def store_tile(base, offsets, columns, inside, width: tl.constexpr, tile, WHOLE: tl.constexpr):
    tile = tile.to(base.dtype.element_ty)
    if WHOLE:
        tl.store(base + offsets, tile)
    else:
        tl.store(base + offsets, tile, mask=inside[:, None] & (columns[None, :] < width))


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
def load_gradient_tile(
    DO, OUT, DSQUARES, row, offsets, out_offsets, local, columns, inside, o_t, s_t, H,
    E: tl.constexpr, SQUARED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """As `load_gradient`, of the chunk that begins at `row`; DO, OUT and DSQUARES point at the head."""
    do = load_tile(DO + row * o_t, offsets, columns, inside, E, WHOLE, "")
    if SQUARED:
        out = load_tile(OUT + row * H * E, out_offsets, columns, inside, E, WHOLE, "")
        twice = 2.0 * tl.load(DSQUARES + (row + local) * s_t, mask=inside, other=0.0)
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
    """A state [D, E], or a transpose, as `load_state` reads it."""
    tl.store(base + d * E + e, tile, mask=(d < D) & (e < E))


@triton.jit
def operand(sums, half: tl.constexpr, C: tl.constexpr):
    """Float32 sums as one side of a product with tiles of type `half`: rounded to it, but not in short calls.

    With one token nothing averages out the rounding of its one score to 8 bits, and PyTorch computes it in float32.
    """
    if C < 64 and half == tl.bfloat16:
        return sums
    else:
        return sums.to(half)


@triton.jit
def product(x, y, total=None):
    """x·y + total. Where `operand` left one side in float32 the other follows; TF32 keeps 11 bits of both."""
    if x.dtype == y.dtype:
        return tl.dot(x, y, total, input_precision="ieee")
    else:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total, input_precision="tf32")
