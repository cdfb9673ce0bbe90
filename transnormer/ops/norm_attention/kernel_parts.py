"""NormAttention over parts of a sequence: the sum of each part, and the states at their borders."""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.rotation import mapped
from transnormer.ops.kernels.tiles import load_tile, store_state, tile_offsets
from transnormer.ops.norm_attention.kernel_chunks import chunk_rows, keep


@triton.jit
def part_sums(
    X, Y, SUMS, MASK, POSITIONS, RATES, DIRECTION, p_b, p_t, T, chunks, chunks_per_part,
    x_b, x_t, x_h, y_b, y_t, y_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, WHOLE: tl.constexpr, REVERSED: tl.constexpr,
    TURNED: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)ᵀy over each part: kᵀv for the states, qᵀdo for their gradients. TURNED: φ(x) is turned as well.

    It ends where the walk after it begins (REVERSED: at the first chunk), so that the cache still holds those rows.
    """
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    x_at, y_at = tile_offsets(local, d, x_t), tile_offsets(local, e, y_t)
    total_t = tl.zeros((BE, BD), tl.float32)
    first = part * chunks_per_part
    last = min((part + 1) * chunks_per_part, chunks) - 1
    for step in range(last - first + 1):
        chunk = last - step if REVERSED else first + step
        row = (chunk * C).to(tl.int64)
        _, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        x = load_tile(X + batch * x_b + head * x_h + row * x_t, x_at, d, inside, D, WHOLE, "evict_last")
        at = batch * p_b + (row + local) * p_t
        x = mapped(x, d, POSITIONS, RATES, DIRECTION, at, inside, D, BD, PHI, TURNED, REFLECTED, WHOLE)
        x = keep(x, real, not WHOLE)
        y = load_tile(Y + batch * y_b + head * y_h + row * y_t, y_at, e, inside, E, WHOLE, "")
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
