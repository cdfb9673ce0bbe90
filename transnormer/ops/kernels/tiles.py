"""Tiles of tensors and of states, loaded and stored."""

from __future__ import annotations

import triton
import triton.language as tl

# Offsets are counted from the first row of a tile: in 32 bits, and once for all tiles of a scan, which saves registers.


@triton.jit
def tile_offsets(rows, columns, row_stride):
    return rows[:, None] * row_stride + columns[None, :]


@triton.jit
def load_tile(base, offsets, columns, inside, width: tl.constexpr, UNMASKED: tl.constexpr, POLICY: tl.constexpr):
    """Rows and columns of a tensor, zero where it ends; UNMASKED: the whole tile is inside, and nobody need look."""
    if UNMASKED:
        return tl.load(base + offsets, eviction_policy=POLICY)
    seen = inside[:, None] & (columns[None, :] < width)
    return tl.load(base + offsets, mask=seen, other=0.0, eviction_policy=POLICY)


@triton.jit
def store_tile(base, offsets, columns, inside, width: tl.constexpr, tile, UNMASKED: tl.constexpr):
    tile = tile.to(base.dtype.element_ty)
    if UNMASKED:
        tl.store(base + offsets, tile)
    else:
        tl.store(base + offsets, tile, mask=inside[:, None] & (columns[None, :] < width))


@triton.jit
def load_state(base, d, e, D: tl.constexpr, E: tl.constexpr, there=True):
    """A state [D, E], zero if it is not there; with d as [1, :] and e as [:, 1] its transpose, read as such."""
    return tl.load(base + d * E + e, mask=(d < D) & (e < E) & there, other=0.0)


@triton.jit
def store_state(base, d, e, D: tl.constexpr, E: tl.constexpr, tile):
    """A state [D, E], or a transpose, as `load_state` reads it."""
    tl.store(base + d * E + e, tile, mask=(d < D) & (e < E))
