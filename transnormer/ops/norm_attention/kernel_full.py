"""Bidirectional NormAttention on the GPU: one state for the whole sequence, then every chunk by itself."""

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
)


@triton.jit
def full_forward(
    Q, STATE, O, SQUARES, MASK, T, q_b, q_t, q_h, o_b, o_t, o_h, mask_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """o = φ(q)·S."""
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    rows, inside, real = chunk_rows(tl.program_id(0), T, MASK, batch, mask_b, C, HAS_MASK)
    q = phi(load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D), d, PHI, D, D < BD)
    state = load_state(STATE + (batch * H + head) * D * E, d[:, None], e[None, :], D, E)
    out = tl.dot(q, state.to(q.dtype), input_precision="ieee")
    out = keep(out, real, HAS_MASK)
    store_rows(O + batch * o_b + head * o_h, rows, e, o_t, inside, E, out)
    store_squares(SQUARES + (batch * H + head) * T if SQUARED else SQUARES, rows, inside, out, SQUARED)


@triton.jit
def full_backward(
    Q, K, V, DO, DQ, DK, DV, STATE, DSTATE, OUT, DSQUARES, MASK, T,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h, s_b, s_t, s_h,
    mask_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr,
):  # fmt: skip
    """dq = do·Sᵀ, dk = v·dSᵀ, dv = φ(k)·dS; the transposes are read from memory as such."""
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    rows, inside, real = chunk_rows(tl.program_id(0), T, MASK, batch, mask_b, C, HAS_MASK)
    at = (batch * H + head) * D * E

    do = load_gradient(DO, OUT, DSQUARES, batch, head, rows, e, inside, T, H, o_b, o_t, o_h, s_b, s_t, s_h, E, SQUARED)
    do = keep(do, real, HAS_MASK)
    state_t = load_state(STATE + at, d[None, :], e[:, None], D, E)
    q = load_rows(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
    dq = tl.dot(do, state_t.to(do.dtype), input_precision="ieee") * phi_slope(q, PHI)
    store_rows(DQ + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dq)

    dstate_t = load_state(DSTATE + at, d[None, :], e[:, None], D, E)
    k_raw = load_rows(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
    v = load_rows(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
    dk = tl.dot(v, dstate_t.to(v.dtype), input_precision="ieee") * phi_slope(k_raw, PHI)
    store_rows(DK + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, keep(dk, real, HAS_MASK))

    dstate = load_state(DSTATE + at, d[:, None], e[None, :], D, E)
    k = keep(phi(k_raw, d, PHI, D, D < BD), real, True)
    dv = tl.dot(k, dstate.to(k.dtype), input_precision="ieee")
    store_rows(DV + batch * dv_b + head * dv_h, rows, e, dv_t, inside, E, dv)
