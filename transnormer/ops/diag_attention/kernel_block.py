"""One block of DiagAttention as one tile on the GPU: its weights, its output, and all three gradients."""

from __future__ import annotations

import triton
import triton.language as tl

from transnormer.ops.kernels.packed import program_rows
from transnormer.ops.kernels.rotation import angles_of, rotated_in_place
from transnormer.ops.kernels.tiles import load_tile, store_tile, tile_offsets


@triton.jit
def _numerators(scores, scale, visible, RELA: tl.constexpr, ALL: tl.constexpr, SOME: tl.constexpr):
    """Queries down: ReLU of the scaled visible scores, or their softmax (base 2) not yet divided by its sums.

    Of a softmax also the scaled maxima and the 1/sums. A row that sees nothing gives zeros. ALL: every row sees
    everything, SOME: at least something.
    """
    if RELA:
        numerators = tl.maximum(scores * scale, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if not ALL:
            numerators = tl.where(visible, numerators, 0.0)
        top = tl.zeros((numerators.shape[0],), tl.float32)  # nobody asks
        share = top
    else:
        if not ALL:
            scores = tl.where(visible, scores, float("-inf"))
        top = tl.max(scores, 1) * scale
        if not SOME:
            top = tl.where(top == float("-inf"), 0.0, top)
        numerators = tl.exp2(scores * scale - top[:, None])
        total = tl.sum(numerators, 1)
        if not SOME:
            total = tl.where(total == 0.0, 1.0, total)
        share = 1.0 / total
    return numerators, top, share


@triton.jit
def _weights_across(scores, scale, visible, top, share, RELA: tl.constexpr, ALL: tl.constexpr):
    """The same with queries across; maxima and sums are those from before, so nothing is reduced down the rows."""
    if RELA:
        weights = tl.maximum(scores * scale, 0.0, propagate_nan=tl.PropagateNan.ALL)
        return weights if ALL else tl.where(visible, weights, 0.0)
    else:
        scores = scores * scale
        if not ALL:
            scores = tl.where(visible, scores, float("-inf"))
        return tl.exp2(scores - top[None, :]) * share[None, :]


@triton.jit
def _scrambled(x):
    """A bijection of 32 bits whose outputs look random (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> 16)) * tl.full((), 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full((), 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _kept(SEEDS, pair, first_row, queries, keys, threshold, BW: tl.constexpr):
    """Which weights dropout keeps: a pure function of two seeds, the pair of batch and head, query and key."""
    first = _scrambled(tl.load(SEEDS).to(tl.uint32) + pair.to(tl.uint32))
    second = tl.load(SEEDS + 1).to(tl.uint32)
    index = ((first_row.to(tl.int32) + queries) * BW + keys).to(tl.uint32)
    return _scrambled(_scrambled(index ^ first) + second) >= threshold


@triton.jit
def _block(
    BOUNDS, N, T, heads, W: tl.constexpr, BW: tl.constexpr, MASK, mask_stride, HAS_MASK: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """This program's row of the batch, heads and block: its first row, and how many there are from there on.

    Then these rows counted from the first one, which of them exist, and which hold a real token.
    """
    local = tl.arange(0, BW)
    batch, origin, length, block, head = program_rows(BOUNDS, N, T, heads, 1, PACKED)
    first = block.to(tl.int64) * W
    rows = length - first
    inside = (local < W) & (local < rows)
    real = inside
    if PACKED:
        batch, first = batch * 0, origin + first
    if HAS_MASK:
        real = inside & (tl.load(MASK + batch * mask_stride + first + local, mask=inside, other=0) != 0)
    return batch, head, first, rows, local, inside, real


@triton.jit
def _visible(queries, keys, real_queries, real_keys, CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which keys a query sees; all arguments have two dimensions, one of them 1.

    Queries that do not exist see what they like: nobody stores their output, and its gradient is read as zero.
    """
    if HAS_MASK:
        visible = real_queries & real_keys
        return visible & (queries >= keys) if CAUSAL else visible
    else:
        return queries >= keys if CAUSAL else real_keys


@triton.jit(do_not_specialize=["N"])
def block_forward(
    Q, K, V, O, SQUARES, MASK, BOUNDS, N, SEEDS, threshold, keep_scale, POSITIONS, FREQS, REFLECTION, p_b, p_t,
    T, H, heads, scale,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, mask_b,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    CAUSAL: tl.constexpr, RELA: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, SQUARED: tl.constexpr,
    DROPS: tl.constexpr, UNMASKED: tl.constexpr, ROTATED: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """A block in so many `heads`. ROTATED: queries and keys are rotated first, in all of them by the same angles."""
    batch, group, first, rows, local, inside, real = _block(
        BOUNDS, N, T, H // heads, W, BW, MASK, mask_b, HAS_MASK, PACKED
    )
    if PACKED and rows <= 0:
        return
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    visible = _visible(local[:, None], local[None, :], real[:, None], real[None, :], CAUSAL, HAS_MASK)
    if ROTATED:
        at = batch * p_b + (first + local) * p_t
        _, cos, sin, reflection = angles_of(POSITIONS, FREQS, REFLECTION, at, inside, D, BD, REFLECTED, UNMASKED)
    for head in range(group * heads, (group + 1) * heads):
        q_base, k_base = Q + batch * q_b + head * q_h + first * q_t, K + batch * k_b + head * k_h + first * k_t
        v_base, o_base = V + batch * v_b + head * v_h + first * v_t, O + batch * o_b + head * o_h + first * o_t
        q = load_tile(q_base, tile_offsets(local, d, q_t), d, real, D, UNMASKED, "")
        k = load_tile(k_base, tile_offsets(local, d, k_t), d, real, D, UNMASKED, "")
        v = load_tile(v_base, tile_offsets(local, e, v_t), e, real, E, UNMASKED, "")
        if ROTATED:
            q = rotated_in_place(q, d, cos, sin, reflection, D, BD, REFLECTED)
            k = rotated_in_place(k, d, cos, sin, reflection, D, BD, REFLECTED)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        weights, _, share = _numerators(scores, scale, visible, RELA, UNMASKED and not CAUSAL, not HAS_MASK)
        if DROPS:
            kept = _kept(SEEDS, batch * H + head, first, local[:, None], local[None, :], threshold, BW)
            weights = tl.where(kept, weights * keep_scale, 0.0)
        out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        if not RELA:
            out *= share[:, None]  # after the product: the largest weight, which counts most, was rounded as 1
        store_tile(o_base, tile_offsets(local, e, o_t), e, inside, E, out, UNMASKED)
        if SQUARED:
            tl.store(SQUARES + (batch * H + head) * T + first + local, tl.sum(out * out, 1), mask=inside)


@triton.jit(do_not_specialize=["N"])
def block_backward(
    Q, K, V, DO, DQ, DK, DV, MASK, BOUNDS, N, SEEDS, threshold, keep_scale, T, H, scale, slope,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h, mask_b,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    CAUSAL: tl.constexpr, RELA: tl.constexpr, HAS_MASK: tl.constexpr, PACKED: tl.constexpr, DROPS: tl.constexpr,
    UNMASKED: tl.constexpr,
):  # fmt: skip
    batch, head, first, rows, local, inside, real = _block(BOUNDS, N, T, H, W, BW, MASK, mask_b, HAS_MASK, PACKED)
    if PACKED and rows <= 0:
        return
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    q_base, k_base = Q + batch * q_b + head * q_h + first * q_t, K + batch * k_b + head * k_h + first * k_t
    v_base, o_base = V + batch * v_b + head * v_h + first * v_t, DO + batch * o_b + head * o_h + first * o_t
    q = load_tile(q_base, tile_offsets(local, d, q_t), d, real, D, UNMASKED, "")
    k = load_tile(k_base, tile_offsets(local, d, k_t), d, real, D, UNMASKED, "")
    v = load_tile(v_base, tile_offsets(local, e, v_t), e, real, E, UNMASKED, "")
    do = load_tile(o_base, tile_offsets(local, e, o_t), e, real, E, UNMASKED, "")

    ALL: tl.constexpr = UNMASKED and not CAUSAL
    # Queries down, keys across: gives dq.
    visible = _visible(local[:, None], local[None, :], real[:, None], real[None, :], CAUSAL, HAS_MASK)
    weights, top, share = _numerators(
        tl.dot(q, tl.trans(k), input_precision="ieee"), scale, visible, RELA, ALL, not HAS_MASK
    )
    if not RELA:
        weights *= share[:, None]
    dweights = tl.dot(do, tl.trans(v), input_precision="ieee")
    if DROPS:
        kept = _kept(SEEDS, batch * H + head, first, local[:, None], local[None, :], threshold, BW)
        dweights = tl.where(kept, dweights * keep_scale, 0.0)
    if RELA:
        dscores = tl.where(weights <= 0.0, 0.0, dweights)
    else:
        mean = tl.sum(weights * dweights, 1)
        dscores = weights * (dweights - mean[:, None])
    dq = tl.dot((dscores * slope).to(k.dtype), k, input_precision="ieee")
    dq_at, dv_at = tile_offsets(local, d, dq_t), tile_offsets(local, e, dv_t)
    dq_base = batch * dq_b + head * dq_h + first * dq_t
    store_tile(DQ + dq_base, dq_at, d, inside, D, dq, UNMASKED)

    # Keys down, queries across: the same numbers again, because transposing a result that lives in registers is
    # miscompiled by Triton 3.4 to 3.7.0 on Hopper. Gives dk and dv.
    visible = _visible(local[None, :], local[:, None], real[None, :], real[:, None], CAUSAL, HAS_MASK)
    scores = tl.dot(k, tl.trans(q), input_precision="ieee")
    weights = _weights_across(scores, scale, visible, top, share, RELA, ALL)
    dweights = tl.dot(v, tl.trans(do), input_precision="ieee")
    dropped = weights
    if DROPS:
        kept = _kept(SEEDS, batch * H + head, first, local[None, :], local[:, None], threshold, BW)
        dropped = tl.where(kept, weights * keep_scale, 0.0)
        dweights = tl.where(kept, dweights * keep_scale, 0.0)
    if RELA:
        dscores = tl.where(weights <= 0.0, 0.0, dweights)
    else:
        dscores = weights * (dweights - mean[None, :])
    dk = tl.dot((dscores * slope).to(q.dtype), q, input_precision="ieee")
    dv = tl.dot(dropped.to(do.dtype), do, input_precision="ieee")
    store_tile(DK + dq_base, dq_at, d, inside, D, dk, UNMASKED)
    store_tile(DV + batch * dv_b + head * dv_h + first * dv_t, dv_at, e, inside, E, dv, UNMASKED)
