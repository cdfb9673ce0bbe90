"""DiagAttention in Triton: one block is one tile. q, k, v are read once, o is written once; the backward recomputes.

No log-sum-exp, no float32 dq and no second pass: forward moves 4 tensors, backward 7, which is the least possible.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.launch import (
    as_mask_bytes,
    cannot_launch,
    in_autocast_dtype,
    near_rows,
    power_of_two,
    too_large_in_float32,
)
from transnormer.ops.norm_attention.kernel_tiles import load_tile, store_tile, tile_offsets

MAX_BLOCK, MAX_HEAD_DIM = 128, 256


def why_not(
    *,
    device: str,
    q: Tensor | None = None,
    v: Tensor | None = None,
    block_size: int = 64,
    **_: Any,
) -> str | None:
    """Why this call cannot run here, or None."""
    if block_size > MAX_BLOCK:
        return f"block_size {block_size} is above {MAX_BLOCK}: a block must fit one tile"
    return cannot_launch(device, q, v, MAX_HEAD_DIM) or too_large_in_float32(q, v, rows=block_size)


@triton.jit
def _weights(scores, scale, visible, RELA: tl.constexpr):
    """Queries down: ReLU of the scaled visible scores, or their softmax (base 2), with its scaled maxima and 1/sums.

    A row that sees nothing gives zeros.
    """
    if RELA:
        weights = tl.where(visible, tl.maximum(scores * scale, 0.0), 0.0)
        top = tl.zeros((weights.shape[0],), tl.float32)  # nobody asks
        share = top
    else:
        scores = tl.where(visible, scores, float("-inf"))
        top = tl.max(scores, 1) * scale
        top = tl.where(top == float("-inf"), 0.0, top)
        exponentials = tl.exp2(scores * scale - top[:, None])
        total = tl.sum(exponentials, 1)
        share = 1.0 / tl.where(total == 0.0, 1.0, total)
        weights = exponentials * share[:, None]
    return weights, top, share


@triton.jit
def _weights_across(scores, scale, visible, top, share, RELA: tl.constexpr):
    """The same with queries across; maxima and sums are those from before, so nothing is reduced down the rows."""
    if RELA:
        return tl.where(visible, tl.maximum(scores * scale, 0.0), 0.0)
    else:
        return tl.exp2(tl.where(visible, scores * scale, float("-inf")) - top[None, :]) * share[None, :]


@triton.jit
def _scrambled(x):
    """A bijection of 32 bits whose outputs look random (the finalizer of MurmurHash3)."""
    x = (x ^ (x >> 16)) * tl.full((), 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full((), 0xC2B2AE35, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _kept(SEEDS, first_row, queries, keys, threshold, BW: tl.constexpr):
    """Which weights dropout keeps: a pure function of two seeds, batch, head, query and key, so nothing is stored."""
    pair = (tl.program_id(1) * tl.num_programs(2) + tl.program_id(2)).to(tl.uint32)
    first = _scrambled(tl.load(SEEDS).to(tl.uint32) + pair)
    second = tl.load(SEEDS + 1).to(tl.uint32)
    place = ((first_row + queries) * BW + keys).to(tl.uint32)
    return _scrambled(_scrambled(place ^ first) + second) >= threshold


@triton.jit
def _block(T, W: tl.constexpr, BW: tl.constexpr, MASK, mask_stride, HAS_MASK: tl.constexpr):
    """This program's block: its first row, the rows counted from there, which exist, and which hold a real token."""
    local = tl.arange(0, BW)
    first = tl.program_id(0).to(tl.int64) * W
    inside = (local < W) & (first + local < T)
    real = inside
    if HAS_MASK:
        row = MASK + tl.program_id(1).to(tl.int64) * mask_stride + first
        real = inside & (tl.load(row + local, mask=inside, other=0) != 0)
    return first, local, inside, real


@triton.jit
def _visible(queries, keys, real_queries, real_keys, CAUSAL: tl.constexpr, WHOLE: tl.constexpr):
    """Which keys a query sees; all arguments have two dimensions, one of them 1."""
    if CAUSAL:
        visible = queries >= keys
        return visible if WHOLE else visible & real_queries & real_keys
    return real_queries & real_keys


@triton.jit
def _forward(
    Q, K, V, O, SQUARES, MASK, SEEDS, threshold, keep_scale, T, scale,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, mask_b,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    CAUSAL: tl.constexpr, RELA: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr, DROPS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    first, local, inside, real = _block(T, W, BW, MASK, mask_b, HAS_MASK)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    q_base, k_base = Q + batch * q_b + head * q_h + first * q_t, K + batch * k_b + head * k_h + first * k_t
    v_base, o_base = V + batch * v_b + head * v_h + first * v_t, O + batch * o_b + head * o_h + first * o_t
    q = load_tile(q_base, tile_offsets(local, d, q_t), d, inside, D, WHOLE, "")
    k = load_tile(k_base, tile_offsets(local, d, k_t), d, inside, D, WHOLE, "")
    v = load_tile(v_base, tile_offsets(local, e, v_t), e, inside, E, WHOLE, "")
    visible = _visible(local[:, None], local[None, :], real[:, None], real[None, :], CAUSAL, WHOLE)
    weights, _, _ = _weights(tl.dot(q, tl.trans(k), input_precision="ieee"), scale, visible, RELA)
    if DROPS:
        kept = _kept(SEEDS, tl.program_id(0) * W, local[:, None], local[None, :], threshold, BW)
        weights = tl.where(kept, weights * keep_scale, 0.0)
    out = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    store_tile(o_base, tile_offsets(local, e, o_t), e, inside, E, out, WHOLE)
    if SQUARED:
        squares = SQUARES + (batch * tl.num_programs(2) + head) * T + first
        tl.store(squares + local, tl.sum(out * out, 1), mask=inside)


@triton.jit
def _backward(
    Q, K, V, DO, DQ, DK, DV, OUT, DSQUARES, MASK, SEEDS, threshold, keep_scale, T, scale, slope,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h, s_b, s_t, s_h,
    mask_b,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    CAUSAL: tl.constexpr, RELA: tl.constexpr, HAS_MASK: tl.constexpr, SQUARED: tl.constexpr, DROPS: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    first, local, inside, real = _block(T, W, BW, MASK, mask_b, HAS_MASK)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    q_base, k_base = Q + batch * q_b + head * q_h + first * q_t, K + batch * k_b + head * k_h + first * k_t
    v_base, o_base = V + batch * v_b + head * v_h + first * v_t, DO + batch * o_b + head * o_h + first * o_t
    q = load_tile(q_base, tile_offsets(local, d, q_t), d, inside, D, WHOLE, "")
    k = load_tile(k_base, tile_offsets(local, d, k_t), d, inside, D, WHOLE, "")
    v = load_tile(v_base, tile_offsets(local, e, v_t), e, inside, E, WHOLE, "")
    do = load_tile(o_base, tile_offsets(local, e, o_t), e, inside, E, WHOLE, "")
    if SQUARED:  # the squares of the output were summed and used: d(Σo²) = 2o
        heads = tl.num_programs(2)
        out_base = OUT + ((batch * T + first) * heads + head) * E
        out = load_tile(out_base, tile_offsets(local, e, heads * E), e, inside, E, WHOLE, "")
        twice = 2.0 * tl.load(DSQUARES + batch * s_b + head * s_h + (first + local) * s_t, mask=inside, other=0.0)
        do = (do.to(tl.float32) + twice[:, None] * out.to(tl.float32)).to(do.dtype)

    # Queries down, keys across: gives dq.
    visible = _visible(local[:, None], local[None, :], real[:, None], real[None, :], CAUSAL, WHOLE)
    weights, top, share = _weights(tl.dot(q, tl.trans(k), input_precision="ieee"), scale, visible, RELA)
    dweights = tl.dot(do, tl.trans(v), input_precision="ieee")
    if DROPS:
        kept = _kept(SEEDS, tl.program_id(0) * W, local[:, None], local[None, :], threshold, BW)
        dweights = tl.where(kept, dweights * keep_scale, 0.0)
    if RELA:
        dscores = tl.where(weights > 0.0, dweights, 0.0)
    else:
        mean = tl.sum(weights * dweights, 1)
        dscores = weights * (dweights - mean[:, None])
    dq = tl.dot((dscores * slope).to(k.dtype), k, input_precision="ieee")
    dq_at, dv_at = tile_offsets(local, d, dq_t), tile_offsets(local, e, dv_t)
    dq_base = batch * dq_b + head * dq_h + first * dq_t
    store_tile(DQ + dq_base, dq_at, d, inside, D, dq, WHOLE)

    # Keys down, queries across: the same numbers again, because transposing a result that lives in registers is
    # miscompiled by Triton 3.4 to 3.7.0 on Hopper. Gives dk and dv.
    visible = _visible(local[None, :], local[:, None], real[None, :], real[:, None], CAUSAL, WHOLE)
    scores = tl.dot(k, tl.trans(q), input_precision="ieee")
    weights = _weights_across(scores, scale, visible, top, share, RELA)
    dweights = tl.dot(v, tl.trans(do), input_precision="ieee")
    dropped = weights
    if DROPS:
        kept = _kept(SEEDS, tl.program_id(0) * W, local[None, :], local[:, None], threshold, BW)
        dropped = tl.where(kept, weights * keep_scale, 0.0)
        dweights = tl.where(kept, dweights * keep_scale, 0.0)
    if RELA:
        dscores = tl.where(weights > 0.0, dweights, 0.0)
    else:
        dscores = weights * (dweights - mean[None, :])
    dk = tl.dot((dscores * slope).to(q.dtype), q, input_precision="ieee")
    dv = tl.dot(dropped.to(do.dtype), do, input_precision="ieee")
    store_tile(DK + dq_base, dq_at, d, inside, D, dk, WHOLE)
    store_tile(DV + batch * dv_b + head * dv_h + first * dv_t, dv_at, e, inside, E, dv, WHOLE)


_LOG2_E = 1.4426950408889634


def _options(q: Tensor, v: Tensor, mask: Tensor | None, block_size: int, kind: str, causal: bool) -> dict[str, Any]:
    """Compile-time constants of a launch, and the scale of the scores (softmax is taken in base 2)."""
    length, d, e = q.shape[1], q.shape[3], v.shape[3]
    tile, bd, be = power_of_two(min(block_size, length)), power_of_two(d), power_of_two(e)
    return {
        "D": d,
        "E": e,
        "BD": bd,
        "BE": be,
        "W": block_size,
        "BW": tile,
        "CAUSAL": causal,
        "RELA": kind == "rela",
        "HAS_MASK": mask is not None,
        # Tiles that hold real tokens only need no masks.
        "WHOLE": mask is None and block_size == tile and length % tile == 0 and (d, e) == (bd, be),
        "num_warps": _warps(tile, max(bd, be)),
        "num_stages": 1,
    }


def _warps(rows: int, width: int) -> int:
    """A warp multiplies 16 rows: of small tiles more of them would only compute the same again."""
    if rows * max(rows, width) > 64 * 128:
        return 8
    return min(4, rows // 16) if width <= 32 else 4


# Registers a thread: so few that one more program fits on a multiprocessor, where next to nothing is spilled for it
# (Hopper, blocks of 64 in 16 bits, no dropout). The forward at 64 went from 39.1 to 37.5 us with it, an earlier
# backward at 128 from 376 to 334 us.
_FORWARD_REGISTERS = {64: 72}
_BACKWARD_REGISTERS = {32: 96, 128: 168}


def _capped(options: dict[str, Any], dtype: torch.dtype, drops: bool, registers: dict[int, int]) -> dict[str, Any]:
    """The options of a launch, with a limit on its registers where that was found to be faster."""
    most = registers.get(options["BD"])
    if most is None or drops or dtype.itemsize > 2 or options["BW"] != 64 or options["BD"] != options["BE"]:
        return options
    return {**options, "maxnreg": most}


def _scales(q: Tensor, kind: str) -> tuple[float, float]:
    """Scale of the scores in the kernel's base, and of their gradient."""
    scale = q.shape[3] ** -0.5
    return (scale if kind == "rela" else scale * _LOG2_E), scale


def _dropout(seeds: Tensor | None, dropout_p: float) -> tuple[Tensor | None, int, float]:
    """Seeds; the smallest random word that keeps a weight; what a kept weight is multiplied with."""
    return seeds, min(int(dropout_p * 2**32), 2**32 - 1), 1 / (1 - dropout_p)


def _grid(q: Tensor, block_size: int) -> tuple[int, int, int]:
    return triton.cdiv(q.shape[1], block_size), q.shape[0], q.shape[2]


@torch.library.custom_op("transnormer::diag_attention", mutates_args=())
def _op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
    squared: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and Σ out² [B, T, H] if `squared`."""
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    squares = _room_for_squares(v, squared)
    options = _options(q, v, mask, block_size, kind, causal)
    _forward[_grid(q, block_size)](
        q, k, v, out, squares, mask, *_dropout(seeds, dropout_p), q.shape[1], _scales(q, kind)[0],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], 0 if mask is None else mask.stride(0),
        **_capped(options, q.dtype, seeds is not None, _FORWARD_REGISTERS), SQUARED=squared, DROPS=seeds is not None,
    )  # fmt: skip
    return out, squares


def _room_for_squares(v: Tensor, squared: bool) -> Tensor:
    """[B, T, H] with time innermost, as a program writes it; empty where nobody asked: an op returns tensors only."""
    if not squared:
        return torch.empty(0, dtype=torch.float32, device=v.device)
    return torch.empty((v.shape[0], v.shape[2], v.shape[1]), dtype=torch.float32, device=v.device).mT


@_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
    squared: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty(v.shape, dtype=v.dtype, device=v.device), _room_for_squares(v, squared)


@torch.library.custom_op("transnormer::diag_attention_backward", mutates_args=())
def _backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    out: Tensor | None,
    dsquares: Tensor | None,
    mask: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    backward_into((dq, dk, dv), q, k, v, do, out, dsquares, mask, seeds, dropout_p, causal, block_size, kind)
    return dq, dk, dv


def backward_into(
    gradients: tuple[Tensor, Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    out: Tensor | None,
    dsquares: Tensor | None,
    mask: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
) -> None:
    """Fill the gradients of q, k and v, of which the first two have the same strides."""
    dq, dk, dv = gradients
    do = near_rows(do)
    options = _options(q, v, mask, block_size, kind, causal)
    _backward[_grid(q, block_size)](
        q, k, v, do, dq, dk, dv, out, dsquares, mask, *_dropout(seeds, dropout_p), q.shape[1], *_scales(q, kind),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3], *dq.stride()[:3], *dv.stride()[:3],
        *((0, 0, 0) if dsquares is None else dsquares.stride()), 0 if mask is None else mask.stride(0),
        **_capped(options, q.dtype, seeds is not None, _BACKWARD_REGISTERS), SQUARED=dsquares is not None,
        DROPS=seeds is not None,
    )  # fmt: skip


@_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    out: Tensor | None,
    dsquares: Tensor | None,
    mask: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    return dq, dk, torch.empty(v.shape, dtype=v.dtype, device=v.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, seeds, *call, squared = inputs
    ctx.call = call
    ctx.save_for_backward(q, k, v, mask, seeds, output[0] if squared else None)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dsquares: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, mask, seeds, out = ctx.saved_tensors
    if do is None:
        do = torch.zeros_like(v)
    if dsquares is None or out is None:
        out = dsquares = None
    gradients = _backward_op(q, k, v, do, out, dsquares, mask, seeds, *ctx.call)
    return (*gradients, None, None, None, None, None, None, None)


_op.register_autograd(_differentiate, setup_context=_save)


def diag_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    block_size: int,
    kind: str,
    mask: Tensor | None,
    dropout_p: float,
    square_sums: bool,
) -> tuple[Tensor, Tensor]:
    """The kernel behind `transnormer.ops.diag_attention`; its arguments have been checked there."""
    q, k, v = (near_rows(in_autocast_dtype(x)) for x in (q, k, v))
    seeds = torch.randint(2**31, (2,), device=q.device) if dropout_p > 0 else None
    out, squares = _op(q, k, v, as_mask_bytes(mask), seeds, dropout_p, causal, block_size, kind, square_sums)
    return out, squares
