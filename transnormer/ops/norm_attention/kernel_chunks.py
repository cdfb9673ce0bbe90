"""What all NormAttention kernels are made of: the rows of a chunk, their mask, and products with states."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_squares(base, local, inside, tile, WANTED: tl.constexpr):
    """Σ tile² of each row, of float32 numbers that nobody has rounded yet."""
    if WANTED:
        tl.store(base + local, tl.sum(tile * tile, 1), mask=inside)


@triton.jit
def chunk_rows(chunk, T, MASK, batch, mask_b, C: tl.constexpr, HAS_MASK: tl.constexpr):
    """The first row of a chunk, which of the rows from there on exist, and which of those are real tokens."""
    row, local = tl.cast(chunk * C, tl.int64), tl.arange(0, C)
    inside = local < T - chunk * C
    real = inside
    if HAS_MASK:
        real = inside & (tl.load(MASK + batch * mask_b + row + local, mask=inside, other=0) != 0)
    return row, inside, real


@triton.jit
def keep(tile, real, NEEDED: tl.constexpr):
    """Zero the rows of a tile that are not real tokens."""
    if NEEDED:
        return tl.where(real[:, None], tile, 0.0).to(tile.dtype)
    return tile


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
