"""NormAttention over segments of a sequence: the sum of each segment, and their boundary states."""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.packed import sequence_rows
from transnormer.ops.kernels.rotation import mapped
from transnormer.ops.kernels.tiles import load_tile, store_state, tile_offsets
from transnormer.ops.norm_attention.kernel_chunks import chunk_rows, keep


@triton.jit
def segment_sums(
    X, Y, SUMS, MASK, CU_SEQLENS, POSITIONS, FREQS, REFLECTION, p_b, p_t, T, chunks, chunks_per_segment,
    x_b, x_t, x_h, y_b, y_t, y_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, UNMASKED: tl.constexpr, REVERSED: tl.constexpr,
    ROTATED: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)ᵀy over each segment: kᵀv for the states, qᵀdo for their gradients. ROTATED: φ(x) is rotated as well.

    It ends where the scan after it begins (REVERSED: at the first chunk), so that the cache still holds those rows.
    """
    segment, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    origin, T = sequence_rows(CU_SEQLENS, batch, T, PACKED)
    chunks = tl.cdiv(T, C) if PACKED else chunks
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    x_at, y_at = tile_offsets(local, d, x_t), tile_offsets(local, e, y_t)
    total_t = tl.zeros((BE, BD), tl.float32)
    first = segment * chunks_per_segment
    last = min((segment + 1) * chunks_per_segment, chunks) - 1
    for step in range(last - first + 1):
        chunk = last - step if REVERSED else first + step
        row = (chunk * C).to(tl.int64)
        _, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        x = load_tile(X + origin * x_b + head * x_h + row * x_t, x_at, d, real, D, UNMASKED, "evict_last")
        at = origin * p_b + (row + local) * p_t
        x = mapped(x, d, POSITIONS, FREQS, REFLECTION, at, inside, D, BD, PHI, ROTATED, REFLECTED, UNMASKED)
        x = keep(x, real, not UNMASKED)
        y = load_tile(Y + origin * y_b + head * y_h + row * y_t, y_at, e, real, E, UNMASKED, "")
        total_t = tl.dot(tl.trans(y), x, total_t, input_precision="ieee")
    store_state(SUMS + ((batch * H + head) * P + segment) * D * E, d[None, :], e[:, None], D, E, total_t)


@triton.jit
def scan_segments(
    SUMS, START, BOUNDS, P, size, STARTS_AT_ZERO: tl.constexpr, REVERSED: tl.constexpr, BLOCK: tl.constexpr
):
    """The P + 1 boundary states of the segments, from START and the segments' sums; REVERSED begins at the end."""
    pair = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    if STARTS_AT_ZERO:
        state = tl.zeros((BLOCK,), tl.float32)
    else:
        state = tl.load(START + pair * size + at, mask=inside, other=0.0)
    for step in range(P):
        segment = P - 1 - step if REVERSED else step
        boundary = segment + 1 if REVERSED else segment
        tl.store(BOUNDS + (pair * (P + 1) + boundary) * size + at, state, mask=inside)
        state += tl.load(SUMS + (pair * P + segment) * size + at, mask=inside, other=0.0)
    tl.store(BOUNDS + (pair * (P + 1) + (0 if REVERSED else P)) * size + at, state, mask=inside)
