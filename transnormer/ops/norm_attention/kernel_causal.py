"""Causal NormAttention on the GPU: a scan over the chunks of a segment with the state in registers.

Triton 3.4 to 3.7.0 miscompiles some products with the transpose of a result that lives in registers on Hopper. What is
transposed here is a state that an earlier iteration finished, which goes through shared memory; anything else that is
needed both ways is computed both ways. A combination of options counts only once its gradients were checked on a GPU.

Rows that are no real tokens are read as zeros. φ(0) need not be zero, but each sum over tokens has v or do as a factor.
"""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.feature_maps import phi, phi_slope
from transnormer.ops.kernels.packed import segment_rows
from transnormer.ops.kernels.tiles import load_state, load_tile, store_state, store_tile, tile_offsets
from transnormer.ops.norm_attention.kernel_chunks import chunk_rows, keep, operand, product, store_squares


@triton.jit(do_not_specialize=["first_segment", "N", "P"])
def causal_forward(
    Q, K, V, O, SQUARES, STATES, MASK, BOUNDS, N, T, chunks, first_segment,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, STARTS_AT_ZERO: tl.constexpr,
    HANDS_ON: tl.constexpr, SQUARED: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """o = tril(φ(q)φ(k)ᵀ)v + φ(q)S.

    A segment finds the state before it in STATES. The last one of a sequence leaves there the state at the end; with
    HANDS_ON each of them does.
    """
    row_length = T
    batch, border, origin, T, head, first, end = segment_rows(BOUNDS, N, T, H, chunks, first_segment, C, PACKED)
    if PACKED and first >= end:
        return
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    half: tl.constexpr = Q.dtype.element_ty
    squares = SQUARES + (batch * H + head) * row_length + (origin if PACKED else 0) if SQUARED else SQUARES
    before = STATES + ((batch * H + head) * P + border) * D * E
    # The transpose is vᵀφ(k): v comes as it was loaded, φ(k) is laid out once. A fifth fewer instructions than φ(k)ᵀv.
    state_t = load_state(before, d[None, :], e[:, None], D, E, (first > 0) | (not STARTS_AT_ZERO))
    ready_t = operand(state_t, half, C)
    row = (first * C).to(tl.int64)
    q_at, k_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t)
    v_at, o_at = tile_offsets(local, e, v_t), tile_offsets(local, e, o_t)
    q_base, k_base = Q + origin * q_b + head * q_h + row * q_t, K + origin * k_b + head * k_h + row * k_t
    v_base, o_base = V + origin * v_b + head * v_h + row * v_t, O + origin * o_b + head * o_h + row * o_t
    for chunk in range(first, end):
        row, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        q = phi(load_tile(q_base, q_at, d, real, D, UNMASKED, "evict_first"), d, PHI, D, D < BD)
        k = phi(load_tile(k_base, k_at, d, real, D, UNMASKED, ""), d, PHI, D, D < BD)
        v = load_tile(v_base, v_at, e, real, E, UNMASKED, "")
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        out = product(q, tl.trans(ready_t))
        scores = tl.where(local[:, None] >= local[None, :], scores, 0.0)
        out = product(operand(scores, half, C), v, out)
        out = keep(out, real, HAS_MASK)
        store_tile(o_base, o_at, e, inside, E, out, UNMASKED)
        store_squares(squares + row, local, inside, out, SQUARED)
        state_t = tl.dot(tl.trans(v), k, state_t, input_precision="ieee")
        # Rounded in the iteration that made it: a product in flight over the end of one serialises them all.
        ready_t = operand(state_t, half, C)
        q_base += C * q_t
        k_base += C * k_t
        v_base += C * v_t
        o_base += C * o_t
    if end * C >= T or HANDS_ON:
        store_state(before + D * E, d[None, :], e[:, None], D, E, state_t)


@triton.jit(do_not_specialize=["first_segment", "N", "P"])
def causal_backward(
    Q, K, V, DO, DQ, DK, DV, STATES, DSTATES, MASK, BOUNDS, N, T, chunks, first_segment,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h,
    mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, ENDS_AT_ZERO: tl.constexpr,
    HANDS_ON: tl.constexpr, UNMASKED: tl.constexpr, SAME_STRIDES: tl.constexpr,
):  # fmt: skip
    """dq, dk and dv in one scan backward that undoes the state: q, k, v, do are read once. For head sizes up to 64.

    SAME_STRIDES: q, k and v have the same strides, and so have their gradients. They share offsets then, which spares a
    scan without a register to spare a hundred of its 1,900 instructions.
    """
    if SAME_STRIDES:
        k_b, k_t, k_h = q_b, q_t, q_h
        v_b, v_t, v_h = q_b, q_t, q_h
        dv_b, dv_t, dv_h = dq_b, dq_t, dq_h
    batch, border, origin, T, head, first, end = segment_rows(BOUNDS, N, T, H, chunks, first_segment, C, PACKED)
    if PACKED and first >= end:
        return
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    half: tl.constexpr = Q.dtype.element_ty
    after = ((batch * H + head) * P + border + 1) * D * E
    minus_t = -load_state(STATES + after, d[None, :], e[:, None], D, E)  # [E, D], what is left of -S
    dstate_t = load_state(DSTATES + after, d[None, :], e[:, None], D, E, (end * C < T) | (not ENDS_AT_ZERO))
    dready_t = operand(dstate_t, half, C)
    q_at, k_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t)
    v_at, o_at = tile_offsets(local, e, v_t), tile_offsets(local, e, o_t)
    dq_at, dv_at = tile_offsets(local, d, dq_t), tile_offsets(local, e, dv_t)
    earlier = local[:, None] >= local[None, :]  # queries down, keys across
    later = local[None, :] >= local[:, None]  # keys down, queries across
    for step in range(end - first):
        row, inside, real = chunk_rows(end - 1 - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q_raw = load_tile(Q + origin * q_b + head * q_h + row * q_t, q_at, d, real, D, UNMASKED, "")
        k_raw = load_tile(K + origin * k_b + head * k_h + row * k_t, k_at, d, real, D, UNMASKED, "")
        v = load_tile(V + origin * v_b + head * v_h + row * v_t, v_at, e, real, E, UNMASKED, "")
        do = load_tile(DO + origin * o_b + head * o_h + row * o_t, o_at, e, real, E, UNMASKED, "")
        q, k = phi(q_raw, d, PHI, D, D < BD), phi(k_raw, d, PHI, D, D < BD)
        dq_row, dv_row = origin * dq_b + head * dq_h + row * dq_t, origin * dv_b + head * dv_h + row * dv_t

        minus_t = tl.dot(tl.trans(v), k, minus_t, input_precision="ieee")
        dscores = tl.where(earlier, tl.dot(do, tl.trans(v), input_precision="ieee"), 0.0)
        dq = product(do, operand(-minus_t, half, C))
        dq = product(operand(dscores, half, C), k, dq)
        store_tile(DQ + dq_row, dq_at, d, inside, D, dq * phi_slope(q_raw, PHI), UNMASKED)

        dscores_t = tl.where(later, tl.dot(v, tl.trans(do), input_precision="ieee"), 0.0)
        dk = product(v, dready_t)
        dk = product(operand(dscores_t, half, C), q, dk)
        store_tile(DK + dq_row, dq_at, d, inside, D, dk * phi_slope(k_raw, PHI), UNMASKED)

        scores_t = tl.where(later, tl.dot(k, tl.trans(q), input_precision="ieee"), 0.0)
        dv = product(k, tl.trans(dready_t))
        dv = product(operand(scores_t, half, C), do, dv)
        store_tile(DV + dv_row, dv_at, e, inside, E, keep(dv, real, HAS_MASK), UNMASKED)

        dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
        dready_t = operand(dstate_t, half, C)  # in the iteration that made it, as in the forward
    if first == 0 or HANDS_ON:
        store_state(DSTATES + after - D * E, d[None, :], e[:, None], D, E, dstate_t)


# Above a head size of 64 the two states of `causal_backward` do not fit into registers: one scan per gradient, each
# over PIECE columns of its result. All three have the form of the forward, out = tri(A·Bᵀ)C + A·S with S = Σ BᵀC.


@triton.jit(do_not_specialize=["N", "P"])
def causal_dq(
    Q, K, V, DO, DQ, STATES, MASK, BOUNDS, N, T, chunks,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, STARTS_AT_ZERO: tl.constexpr,
    UNMASKED: tl.constexpr,
):  # fmt: skip
    """dq = tril(do·vᵀ)φ(k) + do·Sᵀ, scanning forward."""
    batch, border, origin, T, piece, first, end = segment_rows(BOUNDS, N, T, H * PIECES, chunks, 0, C, PACKED)
    if PACKED and first >= end:
        return
    head, d = piece // PIECES, (piece % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    e, local = tl.arange(0, BE), tl.arange(0, C)
    q_at, k_at, dq_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t), tile_offsets(local, d, dq_t)
    v_at, o_at = tile_offsets(local, e, v_t), tile_offsets(local, e, o_t)
    before = STATES + ((batch * H + head) * P + border) * D * E
    state_t = load_state(before, d[None, :], e[:, None], D, E, (first > 0) | (not STARTS_AT_ZERO))
    for chunk in range(first, end):
        row, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        k = load_tile(K + origin * k_b + head * k_h + row * k_t, k_at, d, real, D, UNMASKED, "")
        k = phi(k, d, PHI, D, D < PIECE * PIECES)
        v = load_tile(V + origin * v_b + head * v_h + row * v_t, v_at, e, real, E, UNMASKED, "")
        do = load_tile(DO + origin * o_b + head * o_h + row * o_t, o_at, e, real, E, UNMASKED, "")
        dscores = tl.dot(do, tl.trans(v), input_precision="ieee")
        dscores = tl.where(local[:, None] >= local[None, :], dscores, 0.0)
        dq = product(do, operand(state_t, do.dtype, C))
        dq = product(operand(dscores, k.dtype, C), k, dq)
        state_t = tl.dot(tl.trans(v), k, state_t, input_precision="ieee")
        q = load_tile(Q + origin * q_b + head * q_h + row * q_t, q_at, d, real, D, UNMASKED, "")
        dq *= phi_slope(q, PHI)
        store_tile(DQ + origin * dq_b + head * dq_h + row * dq_t, dq_at, d, inside, D, dq, UNMASKED)


@triton.jit(do_not_specialize=["N", "P"])
def causal_dk(
    Q, K, V, DO, DK, DSTATES, MASK, BOUNDS, N, T, chunks,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dk_b, dk_t, dk_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, ENDS_AT_ZERO: tl.constexpr,
    UNMASKED: tl.constexpr,
):  # fmt: skip
    """dk = triu(v·doᵀ)φ(q) + v·dSᵀ, scanning backward."""
    batch, border, origin, T, piece, first, end = segment_rows(BOUNDS, N, T, H * PIECES, chunks, 0, C, PACKED)
    if PACKED and first >= end:
        return
    head, d = piece // PIECES, (piece % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    e, local = tl.arange(0, BE), tl.arange(0, C)
    q_at, k_at, dk_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t), tile_offsets(local, d, dk_t)
    v_at, o_at = tile_offsets(local, e, v_t), tile_offsets(local, e, o_t)
    after = DSTATES + ((batch * H + head) * P + border + 1) * D * E
    dstate_t = load_state(after, d[None, :], e[:, None], D, E, (end * C < T) | (not ENDS_AT_ZERO))
    for step in range(end - first):
        row, inside, real = chunk_rows(end - 1 - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q = load_tile(Q + origin * q_b + head * q_h + row * q_t, q_at, d, real, D, UNMASKED, "")
        q = phi(q, d, PHI, D, D < PIECE * PIECES)
        v = load_tile(V + origin * v_b + head * v_h + row * v_t, v_at, e, real, E, UNMASKED, "")
        do = load_tile(DO + origin * o_b + head * o_h + row * o_t, o_at, e, real, E, UNMASKED, "")
        dscores_t = tl.dot(v, tl.trans(do), input_precision="ieee")
        dscores_t = tl.where(local[None, :] >= local[:, None], dscores_t, 0.0)
        dk = product(v, operand(dstate_t, v.dtype, C))
        dk = product(operand(dscores_t, q.dtype, C), q, dk)
        dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
        k = load_tile(K + origin * k_b + head * k_h + row * k_t, k_at, d, real, D, UNMASKED, "")
        dk *= phi_slope(k, PHI)
        store_tile(DK + origin * dk_b + head * dk_h + row * dk_t, dk_at, d, inside, D, dk, UNMASKED)


@triton.jit(do_not_specialize=["N", "P"])
def causal_dv(
    Q, K, DO, DV, DSTATES, MASK, BOUNDS, N, T, chunks,
    q_b, q_t, q_h, k_b, k_t, k_h, o_b, o_t, o_h, dv_b, dv_t, dv_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, ENDS_AT_ZERO: tl.constexpr,
    HANDS_ON: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """dv = triu(φ(k)φ(q)ᵀ)do + φ(k)·dS, scanning backward."""
    batch, border, origin, T, piece, first, end = segment_rows(BOUNDS, N, T, H * PIECES, chunks, 0, C, PACKED)
    if PACKED and first >= end:
        return
    head, e = piece // PIECES, (piece % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    d, local = tl.arange(0, BD), tl.arange(0, C)
    q_at, k_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t)
    o_at, dv_at = tile_offsets(local, e, o_t), tile_offsets(local, e, dv_t)
    after = DSTATES + ((batch * H + head) * P + border + 1) * D * E
    dstate = load_state(after, d[:, None], e[None, :], D, E, (end * C < T) | (not ENDS_AT_ZERO))
    for step in range(end - first):
        row, inside, real = chunk_rows(end - 1 - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q = load_tile(Q + origin * q_b + head * q_h + row * q_t, q_at, d, real, D, UNMASKED, "")
        q = phi(q, d, PHI, D, D < BD)
        k = load_tile(K + origin * k_b + head * k_h + row * k_t, k_at, d, real, D, UNMASKED, "")
        k = phi(k, d, PHI, D, D < BD)
        do = load_tile(DO + origin * o_b + head * o_h + row * o_t, o_at, e, real, E, UNMASKED, "")
        scores_t = tl.dot(k, tl.trans(q), input_precision="ieee")
        scores_t = tl.where(local[None, :] >= local[:, None], scores_t, 0.0)
        dv = product(k, operand(dstate, k.dtype, C))
        dv = keep(product(operand(scores_t, do.dtype, C), do, dv), real, HAS_MASK)
        dstate = tl.dot(tl.trans(q), do, dstate, input_precision="ieee")
        store_tile(DV + origin * dv_b + head * dv_h + row * dv_t, dv_at, e, inside, E, dv, UNMASKED)
    if first == 0 or HANDS_ON:
        store_state(after - D * E, d[:, None], e[None, :], D, E, dstate)
