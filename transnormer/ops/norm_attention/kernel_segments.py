"""NormAttention over segments of a sequence: the sum of each segment, and the states between them.

The scan that reads these states finds the one at its own end, so nobody sums its last segment.
"""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.packed import segment_rows
from transnormer.ops.kernels.rotation import mapped
from transnormer.ops.kernels.tiles import load_tile, store_state, tile_offsets
from transnormer.ops.norm_attention.kernel_chunks import chunk_rows


@triton.jit(do_not_specialize=["N", "P"])
def segment_sums(
    X, Y, SUMS, MASK, BOUNDS, POSITIONS, FREQS, REFLECTION, p_b, p_t, N, T, chunks,
    x_b, x_t, x_h, y_b, y_t, y_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, UNMASKED: tl.constexpr, REVERSED: tl.constexpr,
    WANTED: tl.constexpr, ROTATED: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)ᵀy over each segment: kᵀv for the states, qᵀdo for their gradients. ROTATED: φ(x) is rotated as well.

    It ends where the scan after it begins (REVERSED: at the first chunk), so that the cache still holds those rows.
    WANTED are "all" segments, all "but the last" of a sequence or all "but the first".
    """
    batch, border, origin, T, head, first, end = segment_rows(BOUNDS, N, T, H, chunks, 0, C, PACKED)
    if (PACKED and first >= end) or (WANTED == "but the last" and end * C >= T):
        return
    if WANTED == "but the first" and first == 0:
        return
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    x_at, y_at = tile_offsets(local, d, x_t), tile_offsets(local, e, y_t)
    total_t = tl.zeros((BE, BD), tl.float32)
    for step in range(end - first):
        row, inside, real = chunk_rows(
            end - 1 - step if REVERSED else first + step, T, MASK, batch, mask_b, C, HAS_MASK
        )
        x = load_tile(X + origin * x_b + head * x_h + row * x_t, x_at, d, real, D, UNMASKED, "evict_last")
        at = origin * p_b + (row + local) * p_t
        x = mapped(x, d, POSITIONS, FREQS, REFLECTION, at, inside, D, BD, PHI, ROTATED, REFLECTED, UNMASKED)
        y = load_tile(Y + origin * y_b + head * y_h + row * y_t, y_at, e, real, E, UNMASKED, "")  # zero without a token
        total_t = tl.dot(tl.trans(y), x, total_t, input_precision="ieee")
    slot = tl.program_id(0) // H if PACKED else border
    store_state(SUMS + ((batch * H + head) * P + slot) * D * E, d[None, :], e[:, None], D, E, total_t)


@triton.jit
def segments_of_pair(BOUNDS, N, H, P, PACKED: tl.constexpr):
    """Of this program's pair of sequence and head: its first sum, its first border, and how many segments it has."""
    pair = tl.program_id(0).to(tl.int64)
    if PACKED:
        sequence, head = pair // H, pair % H
        slots = BOUNDS + N + 1 + sequence
        slot = tl.load(slots)
        return head * P + slot, head * (P + N) + slot + sequence, tl.load(slots + 1) - slot
    else:
        return pair * P, pair * (P + N), P


@triton.jit(do_not_specialize=["N", "P"])
def scan_segments(
    SUMS, START, STATES, BOUNDS, N, H, P, size,
    STARTS_AT_ZERO: tl.constexpr, REVERSED: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The states at the borders of segments, from START and the segments' sums; REVERSED begins at the end.

    Not the last of them, which the scan of the last segment writes, nor the first where it is zero.
    """
    pair = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    sums, borders, count = segments_of_pair(BOUNDS, N, H, P, PACKED)
    state = tl.zeros((BLOCK,), tl.float32)
    if not STARTS_AT_ZERO:
        state = tl.load(START + pair * size + at, mask=inside, other=0.0)
        tl.store(STATES + (borders + (count if REVERSED else 0)) * size + at, state, mask=inside)
    for step in range(count - 1):
        segment = count - 1 - step if REVERSED else step
        state += tl.load(SUMS + (sums + segment) * size + at, mask=inside, other=0.0)
        tl.store(STATES + (borders + (segment if REVERSED else segment + 1)) * size + at, state, mask=inside)
