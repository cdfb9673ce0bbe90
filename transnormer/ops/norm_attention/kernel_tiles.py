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


@triton.jit
def part_sums(
    X, Y, SUMS, OUT, DSQUARES, MASK, T, chunks, chunks_per_part,
    x_b, x_t, x_h, y_b, y_t, y_h, s_b, s_t, s_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr, WHOLE: tl.constexpr, REVERSED: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)ᵀy over each part: kᵀv for the states, qᵀdo for their gradients.

    It ends where the walk after it begins (REVERSED: at the first chunk), so that the cache still holds those rows.
    """
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    x_at, y_at, out_at = tile_offsets(local, d, x_t), tile_offsets(local, e, y_t), tile_offsets(local, e, H * E)
    out_head = OUT + (batch * T * H + head) * E if SQUARED else OUT
    dsquares_head = DSQUARES + batch * s_b + head * s_h if SQUARED else DSQUARES
    total_t = tl.zeros((BE, BD), tl.float32)
    first = part * chunks_per_part
    last = min((part + 1) * chunks_per_part, chunks) - 1
    for step in range(last - first + 1):
        chunk = last - step if REVERSED else first + step
        row = (chunk * C).to(tl.int64)
        _, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        x = load_tile(X + batch * x_b + head * x_h + row * x_t, x_at, d, inside, D, WHOLE, "evict_last")
        x = keep(phi(x, d, PHI, D, D < BD), real, not WHOLE)
        y = load_gradient_tile(
            Y + batch * y_b + head * y_h, out_head, dsquares_head, row, y_at, out_at, local, e, inside, y_t, s_t, H,
            E, SQUARED, WHOLE,
        )  # fmt: skip
        total_t = tl.dot(tl.trans(y), x, total_t, input_precision="ieee")
    store_state(SUMS + ((batch * H + head) * P + part) * D * E, d[None, :], e[:, None], D, E, total_t)


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
