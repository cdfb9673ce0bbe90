"""Causal NormAttention on the GPU: a walk over the chunks of a part with the state in registers.

Results that live in registers are never transposed (Triton 3.4 to 3.7.0 miscompiles that on Hopper): where a product
needs Sᵀ or dSᵀ, the transpose is accumulated as a state of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.norm_attention.kernel_tiles import (
    chunk_rows,
    keep,
    load_gradient,
    load_rows,
    load_state,
    phi,
    phi_slope,
    store_rows,
    store_squares,
    store_state,
)


@triton.jit
def causal_forward(
    Q, K, V, O, SQUARES, BOUNDS, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, STARTS_AT_ZERO: tl.constexpr, WRITES_END: tl.constexpr,
    SQUARED: tl.constexpr,
):  # fmt: skip
    """o = tril(φ(q)φ(k)ᵀ)v + φ(q)S; a program does PIECE of the E columns."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    squares = SQUARES + (batch * H * PIECES + head) * T if SQUARED else SQUARES
    e = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    d = tl.arange(0, BD)
    local = tl.arange(0, C)
    bounds = BOUNDS + ((batch * H + head) * (P + 1) + part) * D * E
    if STARTS_AT_ZERO:
        state = tl.zeros((BD, PIECE), tl.float32)
    else:
        state = load_state(bounds, d[:, None], e[None, :], D, E)
    for chunk in range(part * chunks_per_part, min((part + 1) * chunks_per_part, chunks)):
        rows, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        q = phi(load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D), d, PHI, D, D < BD)
        k = phi(load_rows(K + batch * k_b + head * k_h, rows, d, k_t, inside, D), d, PHI, D, D < BD)
        k = keep(k, real, True)
        v = load_rows(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(local[:, None] >= local[None, :], scores, 0.0)
        out = tl.dot(q, state.to(q.dtype), input_precision="ieee")
        out = tl.dot(scores.to(v.dtype), v, out, input_precision="ieee")
        out = keep(out, real, HAS_MASK)
        store_rows(O + batch * o_b + head * o_h, rows, e, o_t, inside, E, out)
        store_squares(squares, rows, inside, out, SQUARED)
        state = tl.dot(tl.trans(k), v, state, input_precision="ieee")
    if WRITES_END:
        store_state(bounds + D * E, d, e, D, E, state)


@triton.jit
def causal_backward(
    Q, K, V, DO, DQ, DK, DV, BOUNDS, DBOUNDS, OUT, DSQUARES, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h, s_b, s_t, s_h,
    mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, ENDS_AT_ZERO: tl.constexpr, WRITES_START: tl.constexpr,
    SQUARED: tl.constexpr,
):  # fmt: skip
    """dq, dk and dv in one walk backward that undoes the state: q, k, v, do are read once. For head sizes up to 64."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    local = tl.arange(0, C)
    end = ((batch * H + head) * (P + 1) + part + 1) * D * E
    state_t = load_state(BOUNDS + end, d[None, :], e[:, None], D, E)  # [E, D]
    if ENDS_AT_ZERO:
        dstate = tl.zeros((BD, BE), tl.float32)
        dstate_t = tl.zeros((BE, BD), tl.float32)
    else:
        dstate = load_state(DBOUNDS + end, d[:, None], e[None, :], D, E)
        dstate_t = load_state(DBOUNDS + end, d[None, :], e[:, None], D, E)
    first = part * chunks_per_part
    last = min((part + 1) * chunks_per_part, chunks) - 1
    for step in range(last - first + 1):
        rows, inside, real = chunk_rows(last - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q_raw = load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
        k_raw = load_rows(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
        q, k = keep(phi(q_raw, d, PHI, D, D < BD), real, True), keep(phi(k_raw, d, PHI, D, D < BD), real, True)
        v = load_rows(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
        do = load_gradient(
            DO, OUT, DSQUARES, batch, head, rows, e, inside, T, H, o_b, o_t, o_h, s_b, s_t, s_h, E, SQUARED
        )
        do = keep(do, real, HAS_MASK)
        earlier = local[:, None] >= local[None, :]  # queries down, keys across
        later = local[None, :] >= local[:, None]  # keys down, queries across

        state_t = tl.dot(tl.trans(v), -k, state_t, input_precision="ieee")
        dscores = tl.where(earlier, tl.dot(do, tl.trans(v), input_precision="ieee"), 0.0)
        dq = tl.dot(do, state_t.to(do.dtype), input_precision="ieee")
        dq = tl.dot(dscores.to(k.dtype), k, dq, input_precision="ieee")
        store_rows(DQ + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dq * phi_slope(q_raw, PHI))

        dscores_t = tl.where(later, tl.dot(v, tl.trans(do), input_precision="ieee"), 0.0)
        dk = tl.dot(v, dstate_t.to(v.dtype), input_precision="ieee")
        dk = tl.dot(dscores_t.to(q.dtype), q, dk, input_precision="ieee")
        dk = keep(dk * phi_slope(k_raw, PHI), real, HAS_MASK)
        store_rows(DK + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dk)

        scores_t = tl.where(later, tl.dot(k, tl.trans(q), input_precision="ieee"), 0.0)
        dv = tl.dot(k, dstate.to(k.dtype), input_precision="ieee")
        dv = tl.dot(scores_t.to(do.dtype), do, dv, input_precision="ieee")
        store_rows(DV + batch * dv_b + head * dv_h, rows, e, dv_t, inside, E, dv)

        dstate = tl.dot(tl.trans(q), do, dstate, input_precision="ieee")
        dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
    if WRITES_START:
        store_state(DBOUNDS + end - D * E, d, e, D, E, dstate)


# Above a head size of 64 the three states of `causal_backward` do not fit into registers: one walk per gradient, each
# over PIECE columns of its result. All three have the form of the forward, out = tri(A·Bᵀ)C + A·S with S = Σ BᵀC.


@triton.jit
def causal_dq(
    Q, K, V, DO, DQ, BOUNDS, OUT, DSQUARES, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, s_b, s_t, s_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, STARTS_AT_ZERO: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """dq = tril(do·vᵀ)φ(k) + do·Sᵀ, walking forward."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    e = tl.arange(0, BE)
    local = tl.arange(0, C)
    if STARTS_AT_ZERO:
        state_t = tl.zeros((BE, PIECE), tl.float32)
    else:
        start = ((batch * H + head) * (P + 1) + part) * D * E
        state_t = load_state(BOUNDS + start, d[None, :], e[:, None], D, E)
    for chunk in range(part * chunks_per_part, min((part + 1) * chunks_per_part, chunks)):
        rows, inside, real = chunk_rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        k = load_rows(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
        k = keep(phi(k, d, PHI, D, D < PIECE * PIECES), real, True)
        v = load_rows(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
        do = load_gradient(
            DO, OUT, DSQUARES, batch, head, rows, e, inside, T, H, o_b, o_t, o_h, s_b, s_t, s_h, E, SQUARED
        )
        do = keep(do, real, HAS_MASK)
        dscores = tl.dot(do, tl.trans(v), input_precision="ieee")
        dscores = tl.where(local[:, None] >= local[None, :], dscores, 0.0)
        dq = tl.dot(do, state_t.to(do.dtype), input_precision="ieee")
        dq = tl.dot(dscores.to(k.dtype), k, dq, input_precision="ieee")
        state_t = tl.dot(tl.trans(v), k, state_t, input_precision="ieee")
        q = load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
        store_rows(DQ + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dq * phi_slope(q, PHI))


@triton.jit
def causal_dk(
    Q, K, V, DO, DK, DBOUNDS, OUT, DSQUARES, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dk_b, dk_t, dk_h, s_b, s_t, s_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BE: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, ENDS_AT_ZERO: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """dk = triu(v·doᵀ)φ(q) + v·dSᵀ, walking backward."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    e = tl.arange(0, BE)
    local = tl.arange(0, C)
    if ENDS_AT_ZERO:
        dstate_t = tl.zeros((BE, PIECE), tl.float32)
    else:
        end = ((batch * H + head) * (P + 1) + part + 1) * D * E
        dstate_t = load_state(DBOUNDS + end, d[None, :], e[:, None], D, E)
    first = part * chunks_per_part
    last = min((part + 1) * chunks_per_part, chunks) - 1
    for step in range(last - first + 1):
        rows, inside, real = chunk_rows(last - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q = load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
        q = keep(phi(q, d, PHI, D, D < PIECE * PIECES), real, True)
        v = load_rows(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
        do = load_gradient(
            DO, OUT, DSQUARES, batch, head, rows, e, inside, T, H, o_b, o_t, o_h, s_b, s_t, s_h, E, SQUARED
        )
        do = keep(do, real, HAS_MASK)
        dscores_t = tl.dot(v, tl.trans(do), input_precision="ieee")
        dscores_t = tl.where(local[None, :] >= local[:, None], dscores_t, 0.0)
        dk = tl.dot(v, dstate_t.to(v.dtype), input_precision="ieee")
        dk = tl.dot(dscores_t.to(q.dtype), q, dk, input_precision="ieee")
        dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
        k = load_rows(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
        dk = keep(dk * phi_slope(k, PHI), real, HAS_MASK)
        store_rows(DK + batch * dk_b + head * dk_h, rows, d, dk_t, inside, D, dk)


@triton.jit
def causal_dv(
    Q, K, DO, DV, DBOUNDS, OUT, DSQUARES, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, o_b, o_t, o_h, dv_b, dv_t, dv_h, s_b, s_t, s_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, ENDS_AT_ZERO: tl.constexpr, WRITES_START: tl.constexpr,
    SQUARED: tl.constexpr,
):  # fmt: skip
    """dv = triu(φ(k)φ(q)ᵀ)do + φ(k)·dS, walking backward."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    e = (head % PIECES).to(tl.int32) * PIECE + tl.arange(0, PIECE)
    head = head // PIECES
    d = tl.arange(0, BD)
    local = tl.arange(0, C)
    end = ((batch * H + head) * (P + 1) + part + 1) * D * E
    if ENDS_AT_ZERO:
        dstate = tl.zeros((BD, PIECE), tl.float32)
    else:
        dstate = load_state(DBOUNDS + end, d[:, None], e[None, :], D, E)
    first = part * chunks_per_part
    last = min((part + 1) * chunks_per_part, chunks) - 1
    for step in range(last - first + 1):
        rows, inside, real = chunk_rows(last - step, T, MASK, batch, mask_b, C, HAS_MASK)
        q = load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
        q = keep(phi(q, d, PHI, D, D < BD), real, True)
        k = load_rows(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
        k = keep(phi(k, d, PHI, D, D < BD), real, True)
        do = load_gradient(
            DO, OUT, DSQUARES, batch, head, rows, e, inside, T, H, o_b, o_t, o_h, s_b, s_t, s_h, E, SQUARED
        )
        do = keep(do, real, HAS_MASK)
        scores_t = tl.dot(k, tl.trans(q), input_precision="ieee")
        scores_t = tl.where(local[None, :] >= local[:, None], scores_t, 0.0)
        dv = tl.dot(k, dstate.to(k.dtype), input_precision="ieee")
        dv = tl.dot(scores_t.to(do.dtype), do, dv, input_precision="ieee")
        dstate = tl.dot(tl.trans(q), do, dstate, input_precision="ieee")
        store_rows(DV + batch * dv_b + head * dv_h, rows, e, dv_t, inside, E, dv)
    if WRITES_START:
        store_state(DBOUNDS + end - D * E, d, e, D, E, dstate)
