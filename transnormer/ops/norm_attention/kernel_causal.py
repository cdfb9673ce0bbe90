"""Causal NormAttention on the GPU: a scan over the chunks of a segment with the state in registers.

Triton 3.4 to 3.7.0 miscompiles some products with the transpose of a result that lives in registers on Hopper. What is
transposed here is a state that an earlier iteration finished, which goes through shared memory; anything else that is
needed both ways is computed both ways. A combination of options counts only once its gradients were checked on a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.feature_maps import phi, phi_slope
from transnormer.ops.kernels.packed import segment_rows
from transnormer.ops.kernels.tiles import load_state, load_tile, store_state, store_tile, tile_offsets
from transnormer.ops.norm_attention.kernel_chunks import (
    chunk_rows,
    keep,
    load_rows,
    operand,
    product,
    store_rows,
    store_squares,
)


@triton.jit
def _forward_chunk(
    Q, K, V, O, SQUARES, MASK, q_at, k_at, v_at, o_at, batch, mask_b, chunk, T, d, e, local, state_t, ready_t,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """The output of a chunk, whose first rows are at Q, K, V, O, and the state after it: as sums and as `operand`."""
    half: tl.constexpr = Q.dtype.element_ty
    rows, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
    q = phi(load_tile(Q, q_at, d, real, D, UNMASKED, "evict_first"), d, PHI, D, D < BD)
    k = phi(load_tile(K, k_at, d, real, D, UNMASKED, ""), d, PHI, D, D < BD)
    k = keep(k, real, not UNMASKED)
    v = load_tile(V, v_at, e, real, E, UNMASKED, "")
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    out = product(q, tl.trans(ready_t))
    scores = tl.where(local[:, None] >= local[None, :], scores, 0.0)
    out = product(operand(scores, half, C), v, out)
    out = keep(out, real, HAS_MASK)
    store_tile(O, o_at, e, inside, E, out, UNMASKED)
    store_squares(SQUARES, rows, inside, out, SQUARED)
    state_t = tl.dot(tl.trans(v), k, state_t, input_precision="ieee")
    # Rounded in the iteration that made it: a product in flight over the end of one serialises them all.
    return state_t, operand(state_t, half, C)


@triton.jit(do_not_specialize=["first_segment", "N", "P"])
def causal_forward(
    Q, K, V, O, SQUARES, BOUNDS, MASK, CU_SEQLENS, N, T, chunks, first_segment,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, STARTS_AT_ZERO: tl.constexpr,
    HANDS_ON: tl.constexpr, SQUARED: tl.constexpr, UNMASKED: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """o = tril(φ(q)φ(k)ᵀ)v + φ(q)S.

    Segments find the state before them in BOUNDS; the last one leaves there the state at the end, and with HANDS_ON
    each of them does. UNMASKED: chunks are without masks, but with a TAIL for the last one of a sequence.
    """
    row_length = T
    batch, border, origin, T, first, end = segment_rows(CU_SEQLENS, N, T, chunks, first_segment, C, PACKED)
    if PACKED and first >= end:
        return
    head = tl.program_id(2).to(tl.int64)
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    squares = SQUARES + (batch * H + head) * row_length + (origin if PACKED else 0) if SQUARED else SQUARES
    bounds = BOUNDS + ((batch * H + head) * P + border) * D * E
    # The transpose is vᵀφ(k): v comes as it was loaded, φ(k) is laid out once. A fifth fewer instructions than φ(k)ᵀv.
    state_t = load_state(bounds, d[None, :], e[:, None], D, E, (first > 0) | (not STARTS_AT_ZERO))
    ready_t = operand(state_t, Q.dtype.element_ty, C)
    row = (first * C).to(tl.int64)
    q_at, k_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t)
    v_at, o_at = tile_offsets(local, e, v_t), tile_offsets(local, e, o_t)
    q_base, k_base = Q + origin * q_b + head * q_h + row * q_t, K + origin * k_b + head * k_h + row * k_t
    v_base, o_base = V + origin * v_b + head * v_h + row * v_t, O + origin * o_b + head * o_h + row * o_t
    for chunk in range(first, tl.minimum(end, T // C) if TAIL else end):
        state_t, ready_t = _forward_chunk(
            q_base, k_base, v_base, o_base, squares, MASK, q_at, k_at, v_at, o_at, batch, mask_b, chunk, T, d, e, local,
            state_t, ready_t, D, E, BD, C, PHI, HAS_MASK, SQUARED, UNMASKED,
        )  # fmt: skip
        q_base += C * q_t
        k_base += C * k_t
        v_base += C * v_t
        o_base += C * o_t
    if TAIL and end * C > T:
        state_t, ready_t = _forward_chunk(
            q_base, k_base, v_base, o_base, squares, MASK, q_at, k_at, v_at, o_at, batch, mask_b, end - 1, T, d, e,
            local, state_t, ready_t, D, E, BD, C, PHI, HAS_MASK, SQUARED, False,
        )  # fmt: skip
    if end * C >= T or HANDS_ON:
        store_state(bounds + D * E, d[None, :], e[:, None], D, E, state_t)


@triton.jit
def _backward_chunk(
    Q, K, V, DO, DQ, DK, DV, MASK, q_at, k_at, v_at, o_at, dq_at, dv_at, q_t, k_t, v_t, o_t, dq_t, dv_t,
    batch, mask_b, chunk, T, d, e, earlier, later, minus_t, dstate_t, dready_t,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """The gradients of a chunk of a sequence at Q, K, ...; what is left of -S before it, and dS there."""
    half: tl.constexpr = Q.dtype.element_ty
    row = (chunk * C).to(tl.int64)
    _, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
    q_raw = load_tile(Q + row * q_t, q_at, d, real, D, UNMASKED, "")
    k_raw = load_tile(K + row * k_t, k_at, d, real, D, UNMASKED, "")
    v = load_tile(V + row * v_t, v_at, e, real, E, UNMASKED, "")
    do = load_tile(DO + row * o_t, o_at, e, real, E, UNMASKED, "")
    q = keep(phi(q_raw, d, PHI, D, D < BD), real, not UNMASKED)
    k = keep(phi(k_raw, d, PHI, D, D < BD), real, not UNMASKED)

    minus_t = tl.dot(tl.trans(v), k, minus_t, input_precision="ieee")
    dscores = tl.where(earlier, tl.dot(do, tl.trans(v), input_precision="ieee"), 0.0)
    dq = product(do, operand(-minus_t, half, C))
    dq = product(operand(dscores, half, C), k, dq)
    store_tile(DQ + row * dq_t, dq_at, d, inside, D, dq * phi_slope(q_raw, PHI), UNMASKED)

    dscores_t = tl.where(later, tl.dot(v, tl.trans(do), input_precision="ieee"), 0.0)
    dk = product(v, dready_t)
    dk = product(operand(dscores_t, half, C), q, dk)
    dk = keep(dk * phi_slope(k_raw, PHI), real, HAS_MASK)
    store_tile(DK + row * dq_t, dq_at, d, inside, D, dk, UNMASKED)

    scores_t = tl.where(later, tl.dot(k, tl.trans(q), input_precision="ieee"), 0.0)
    dv = product(k, tl.trans(dready_t))
    dv = product(operand(scores_t, half, C), do, dv)
    store_tile(DV + row * dv_t, dv_at, e, inside, E, dv, UNMASKED)

    dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
    return minus_t, dstate_t, operand(dstate_t, half, C)  # in the iteration that made it, as in the forward


@triton.jit(do_not_specialize=["first_segment", "N", "P"])
def causal_backward(
    Q, K, V, DO, DQ, DK, DV, BOUNDS, DBOUNDS, MASK, CU_SEQLENS, N, T, chunks, first_segment,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h,
    mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, ENDS_AT_ZERO: tl.constexpr,
    HANDS_ON: tl.constexpr, UNMASKED: tl.constexpr, TAIL: tl.constexpr, SAME_STRIDES: tl.constexpr,
):  # fmt: skip
    """dq, dk and dv in one scan backward that undoes the state: q, k, v, do are read once. For head sizes up to 64.

    As `causal_forward` from the other end, whose chunks may be a TAIL. SAME_STRIDES: q, k and v have the same strides,
    and so have their gradients. They share offsets then, which spares a scan without a register to spare a hundred of
    its 1,900 instructions.
    """
    if SAME_STRIDES:
        k_b, k_t, k_h = q_b, q_t, q_h
        v_b, v_t, v_h = q_b, q_t, q_h
        dv_b, dv_t, dv_h = dq_b, dq_t, dq_h
    batch, border, origin, T, first, end = segment_rows(CU_SEQLENS, N, T, chunks, first_segment, C, PACKED)
    if PACKED and first >= end:
        return
    head = tl.program_id(2).to(tl.int64)
    d, e, local = tl.arange(0, BD), tl.arange(0, BE), tl.arange(0, C)
    after = ((batch * H + head) * P + border + 1) * D * E
    minus_t = -load_state(BOUNDS + after, d[None, :], e[:, None], D, E, True)  # [E, D], what is left of -S
    dstate_t = load_state(DBOUNDS + after, d[None, :], e[:, None], D, E, (end * C < T) | (not ENDS_AT_ZERO))
    dready_t = operand(dstate_t, Q.dtype.element_ty, C)
    q_at, k_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t)
    v_at, o_at = tile_offsets(local, e, v_t), tile_offsets(local, e, o_t)
    dq_at, dv_at = tile_offsets(local, d, dq_t), tile_offsets(local, e, dv_t)
    earlier = local[:, None] >= local[None, :]  # queries down, keys across
    later = local[None, :] >= local[:, None]  # keys down, queries across
    Q, K, V = Q + origin * q_b + head * q_h, K + origin * k_b + head * k_h, V + origin * v_b + head * v_h
    DO, DV = DO + origin * o_b + head * o_h, DV + origin * dv_b + head * dv_h
    DQ, DK = DQ + origin * dq_b + head * dq_h, DK + origin * dq_b + head * dq_h
    whole = tl.minimum(end, T // C) if TAIL else end
    if TAIL and end > whole:
        minus_t, dstate_t, dready_t = _backward_chunk(
            Q, K, V, DO, DQ, DK, DV, MASK, q_at, k_at, v_at, o_at, dq_at, dv_at, q_t, k_t, v_t, o_t, dq_t, dv_t,
            batch, mask_b, whole, T, d, e, earlier, later, minus_t, dstate_t, dready_t,
            D, E, BD, C, PHI, HAS_MASK, False,
        )  # fmt: skip
    for step in range(whole - first):
        minus_t, dstate_t, dready_t = _backward_chunk(
            Q, K, V, DO, DQ, DK, DV, MASK, q_at, k_at, v_at, o_at, dq_at, dv_at, q_t, k_t, v_t, o_t, dq_t, dv_t,
            batch, mask_b, whole - 1 - step, T, d, e, earlier, later, minus_t, dstate_t, dready_t,
            D, E, BD, C, PHI, HAS_MASK, UNMASKED,
        )  # fmt: skip
    if first == 0 or HANDS_ON:
        store_state(DBOUNDS + after - D * E, d[None, :], e[:, None], D, E, dstate_t)


# Above a head size of 64 the two states of `causal_backward` do not fit into registers: one scan per gradient, each
# over PIECE columns of its result. All three have the form of the forward, out = tri(A·Bᵀ)C + A·S with S = Σ BᵀC.


@triton.jit(do_not_specialize=["N", "P"])
def causal_dq(
    Q, K, V, DO, DQ, BOUNDS, MASK, CU_SEQLENS, N, T, chunks,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, STARTS_AT_ZERO: tl.constexpr,
):  # fmt: skip
    """dq = tril(do·vᵀ)φ(k) + do·Sᵀ, scanning forward."""
    batch, border, origin, T, first, end = segment_rows(CU_SEQLENS, N, T, chunks, 0, C, PACKED)
    if PACKED and first >= end:
        return
    head = tl.program_id(2).to(tl.int64)
    d = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    e = tl.arange(0, BE)
    local = tl.arange(0, C)
    before = ((batch * H + head) * P + border) * D * E
    state_t = load_state(BOUNDS + before, d[None, :], e[:, None], D, E, (first > 0) | (not STARTS_AT_ZERO))
    for chunk in range(first, end):
        rows, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        k = load_rows(K + origin * k_b + head * k_h, rows, d, k_t, real, D)
        k = keep(phi(k, d, PHI, D, D < PIECE * PIECES), real, True)
        v = load_rows(V + origin * v_b + head * v_h, rows, e, v_t, real, E)
        do = load_rows(DO + origin * o_b + head * o_h, rows, e, o_t, real, E)
        dscores = tl.dot(do, tl.trans(v), input_precision="ieee")
        dscores = tl.where(local[:, None] >= local[None, :], dscores, 0.0)
        dq = product(do, operand(state_t, do.dtype, C))
        dq = product(operand(dscores, k.dtype, C), k, dq)
        state_t = tl.dot(tl.trans(v), k, state_t, input_precision="ieee")
        q = load_rows(Q + origin * q_b + head * q_h, rows, d, q_t, real, D)
        store_rows(DQ + origin * dq_b + head * dq_h, rows, d, dq_t, inside, D, dq * phi_slope(q, PHI))


@triton.jit(do_not_specialize=["N", "P"])
def causal_dk(
    Q, K, V, DO, DK, DBOUNDS, MASK, CU_SEQLENS, N, T, chunks,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dk_b, dk_t, dk_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, ENDS_AT_ZERO: tl.constexpr,
):  # fmt: skip
    """dk = triu(v·doᵀ)φ(q) + v·dSᵀ, scanning backward."""
    batch, border, origin, T, first, end = segment_rows(CU_SEQLENS, N, T, chunks, 0, C, PACKED)
    if PACKED and first >= end:
        return
    head = tl.program_id(2).to(tl.int64)
    d = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    e = tl.arange(0, BE)
    local = tl.arange(0, C)
    after = ((batch * H + head) * P + border + 1) * D * E
    dstate_t = load_state(DBOUNDS + after, d[None, :], e[:, None], D, E, (end * C < T) | (not ENDS_AT_ZERO))
    for step in range(end - first):
        rows, inside, real = chunk_rows(end - 1 - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q = load_rows(Q + origin * q_b + head * q_h, rows, d, q_t, real, D)
        q = keep(phi(q, d, PHI, D, D < PIECE * PIECES), real, True)
        v = load_rows(V + origin * v_b + head * v_h, rows, e, v_t, real, E)
        do = load_rows(DO + origin * o_b + head * o_h, rows, e, o_t, real, E)
        dscores_t = tl.dot(v, tl.trans(do), input_precision="ieee")
        dscores_t = tl.where(local[None, :] >= local[:, None], dscores_t, 0.0)
        dk = product(v, operand(dstate_t, v.dtype, C))
        dk = product(operand(dscores_t, q.dtype, C), q, dk)
        dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
        k = load_rows(K + origin * k_b + head * k_h, rows, d, k_t, real, D)
        dk = keep(dk * phi_slope(k, PHI), real, HAS_MASK)
        store_rows(DK + origin * dk_b + head * dk_h, rows, d, dk_t, inside, D, dk)


@triton.jit(do_not_specialize=["N", "P"])
def causal_dv(
    Q, K, DO, DV, DBOUNDS, MASK, CU_SEQLENS, N, T, chunks,
    q_b, q_t, q_h, k_b, k_t, k_h, o_b, o_t, o_h, dv_b, dv_t, dv_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, ENDS_AT_ZERO: tl.constexpr,
    HANDS_ON: tl.constexpr,
):  # fmt: skip
    """dv = triu(φ(k)φ(q)ᵀ)do + φ(k)·dS, scanning backward."""
    batch, border, origin, T, first, end = segment_rows(CU_SEQLENS, N, T, chunks, 0, C, PACKED)
    if PACKED and first >= end:
        return
    head = tl.program_id(2).to(tl.int64)
    e = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    d = tl.arange(0, BD)
    local = tl.arange(0, C)
    after = ((batch * H + head) * P + border + 1) * D * E
    dstate = load_state(DBOUNDS + after, d[:, None], e[None, :], D, E, (end * C < T) | (not ENDS_AT_ZERO))
    for step in range(end - first):
        rows, inside, real = chunk_rows(end - 1 - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q = load_rows(Q + origin * q_b + head * q_h, rows, d, q_t, real, D)
        q = keep(phi(q, d, PHI, D, D < BD), real, True)
        k = load_rows(K + origin * k_b + head * k_h, rows, d, k_t, real, D)
        k = keep(phi(k, d, PHI, D, D < BD), real, True)
        do = load_rows(DO + origin * o_b + head * o_h, rows, e, o_t, real, E)
        scores_t = tl.dot(k, tl.trans(q), input_precision="ieee")
        scores_t = tl.where(local[None, :] >= local[:, None], scores_t, 0.0)
        dv = product(k, operand(dstate, k.dtype, C))
        dv = product(operand(scores_t, do.dtype, C), do, dv)
        dstate = tl.dot(tl.trans(q), do, dstate, input_precision="ieee")
        store_rows(DV + origin * dv_b + head * dv_h, rows, e, dv_t, inside, E, dv)
    if first == 0 or HANDS_ON:
        store_state(DBOUNDS + after - D * E, d[:, None], e[None, :], D, E, dstate)
