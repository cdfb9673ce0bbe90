"""Bidirectional NormAttention on the GPU: one state for the whole sequence, then every chunk by itself."""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.feature_maps import phi, phi_slope
from transnormer.ops.kernels.packed import program_rows
from transnormer.ops.kernels.rotation import angles_of, rotated
from transnormer.ops.kernels.tiles import load_state, load_tile, store_tile, tile_offsets
from transnormer.ops.norm_attention.kernel_chunks import chunk_rows, keep, store_squares
from transnormer.ops.norm_attention.kernel_segments import segments_of_pair


@triton.jit(do_not_specialize=["N", "P"])
def total_of_segments(
    SUMS, START, TOTAL, HALF, OTHER, OTHER_HALF, BOUNDS, N, H, P, size,
    HAS_START: tl.constexpr, HAS_OTHER: tl.constexpr, PACKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """START plus the sums of all segments, and the same rounded for the products that follow; OTHER is rounded too."""
    pair = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    sums, _, count = segments_of_pair(BOUNDS, N, H, P, PACKED)
    total = tl.zeros((BLOCK,), tl.float32)
    if HAS_START:
        total += tl.load(START + pair * size + at, mask=inside, other=0.0)
    for segment in range(count):
        total += tl.load(SUMS + (sums + segment) * size + at, mask=inside, other=0.0)
    tl.store(TOTAL + pair * size + at, total, mask=inside)
    tl.store(HALF + pair * size + at, total.to(HALF.dtype.element_ty), mask=inside)
    if HAS_OTHER:
        other = tl.load(OTHER + pair * size + at, mask=inside, other=0.0)
        tl.store(OTHER_HALF + pair * size + at, other.to(OTHER_HALF.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N"])
def full_forward(
    Q, STATE, O, SQUARES, MASK, BOUNDS, POSITIONS, FREQS, REFLECTION, p_b, p_t, N, T, heads,
    q_b, q_t, q_h, o_b, o_t, o_h, mask_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, SQUARED: tl.constexpr, UNMASKED: tl.constexpr,
    ROTATED: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """o = φ(q)·S in so many `heads`. ROTATED: φ(q) is rotated first, in all of them by the same angles."""
    row_length = T
    batch, origin, T, chunk, group = program_rows(BOUNDS, N, T, H // heads, 2, PACKED)
    if PACKED and chunk * C >= T:
        return
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    row, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
    if ROTATED:
        at = origin * p_b + (row + local) * p_t
        _, cos, sin, reflection = angles_of(POSITIONS, FREQS, REFLECTION, at, inside, D, BD, REFLECTED, UNMASKED)
    for head in range(group * heads, (group + 1) * heads):
        q = load_tile(Q + origin * q_b + head * q_h + row * q_t, tile_offsets(local, d, q_t), d, real, D, UNMASKED, "")
        state = load_state(STATE + (batch * H + head) * D * E, d[:, None], e[None, :], D, E)
        if ROTATED:
            q = rotated(q, d, cos, sin, reflection, D, BD, PHI, REFLECTED).to(q.dtype)
        else:
            q = phi(q, d, PHI, D, D < BD)
        out = keep(tl.dot(q, state, input_precision="ieee"), real, HAS_MASK)
        store_tile(O + origin * o_b + head * o_h + row * o_t, tile_offsets(local, e, o_t), e, inside, E, out, UNMASKED)
        if SQUARED:
            squares = SQUARES + (head * row_length + origin if PACKED else (batch * H + head) * row_length)
            store_squares(squares + row, local, inside, out, SQUARED)


@triton.jit(do_not_specialize=["N"])
def full_backward(
    Q, K, V, DO, DQ, DK, DV, STATE, DSTATE, MASK, BOUNDS, N, T,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h,
    mask_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """dq = do·Sᵀ, dk = v·dSᵀ, dv = φ(k)·dS; what is transposed comes straight from memory, not out of a product."""
    batch, origin, T, chunk, head = program_rows(BOUNDS, N, T, H, 2, PACKED)
    if PACKED and chunk * C >= T:
        return
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    row, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
    at = (batch * H + head) * D * E
    dq_at, dv_at = tile_offsets(local, d, dq_t), tile_offsets(local, e, dv_t)
    dq_row, dv_row = origin * dq_b + head * dq_h + row * dq_t, origin * dv_b + head * dv_h + row * dv_t

    do_row = DO + origin * o_b + head * o_h + row * o_t
    do = load_tile(do_row, tile_offsets(local, e, o_t), e, real, E, UNMASKED, "")
    state = load_state(STATE + at, d[:, None], e[None, :], D, E)
    q = load_tile(Q + origin * q_b + head * q_h + row * q_t, tile_offsets(local, d, q_t), d, real, D, UNMASKED, "")
    dq = tl.dot(do, tl.trans(state), input_precision="ieee") * phi_slope(q, PHI)
    store_tile(DQ + dq_row, dq_at, d, inside, D, dq, UNMASKED)

    dstate = load_state(DSTATE + at, d[:, None], e[None, :], D, E)
    k_raw = load_tile(K + origin * k_b + head * k_h + row * k_t, tile_offsets(local, d, k_t), d, real, D, UNMASKED, "")
    v = load_tile(V + origin * v_b + head * v_h + row * v_t, tile_offsets(local, e, v_t), e, real, E, UNMASKED, "")
    dk = tl.dot(v, tl.trans(dstate), input_precision="ieee") * phi_slope(k_raw, PHI)
    store_tile(DK + dq_row, dq_at, d, inside, D, dk, UNMASKED)

    dv = tl.dot(phi(k_raw, d, PHI, D, D < BD), dstate, input_precision="ieee")
    store_tile(DV + dv_row, dv_at, e, inside, E, keep(dv, real, HAS_MASK), UNMASKED)
