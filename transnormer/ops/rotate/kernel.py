"""φ, reflection and rotation of queries and keys in one Triton kernel: each is read once and written once.

A program rotates the queries and the keys of some positions, in all heads and, where the positions of all sequences are
the same, in several sequences: they share their cosines and sines. The backward reads the inputs again instead of
keeping what lies between; without a feature map it reads the outputs, which an attention keeps anyway. The gradient
of the inverse frequencies is summed program by program, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.feature_maps import PHI_CODES, phi_slope
from transnormer.ops.kernels.launch import cannot_launch, kernel_op, near_rows, power_of_two
from transnormer.ops.kernels.rotation import (
    angles_of,
    features,
    interleaved,
    pairs,
    position_strides,
    reflected,
    rotated,
)
from transnormer.ops.kernels.tiles import load_tile, store_tile, tile_offsets

MAX_HEAD_DIM = 256
# Numbers of one head that a program holds at a time, of q and of k: as many as fit into 64 registers (backward 80).
_TILE, _TILE_BACKWARD = 2048, 1024
# And rows: small heads are faster in more and smaller programs (20 sequences of 5,120, 8 heads of 16, on an H200:
# 43 us forward with 32 rows, 66 with 64, 70 with 128; backward 61 with 32, 84 with 64).
_ROWS = 32
# Numbers of one head that an H200 works on at a time: 8 forward programs on each of 132 multiprocessors. Programs take
# several sequences only as long as there is still that much for all of them together.
_AT_A_TIME = 2**21


def why_not(*, device: str, q: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, q, None, MAX_HEAD_DIM)


@triton.jit
def _program(POSITIONS, FREQS, REFLECTION, B, T, sequences, p_b, p_t, D: tl.constexpr, BD: tl.constexpr,
             BT: tl.constexpr, REFLECTED: tl.constexpr, UNMASKED: tl.constexpr):  # fmt: skip
    """What a program works on, and what all its queries and keys share.

    Sequences (from, to); the first row, the rows counted from there, which of them exist; positions, cosines and
    sines [BT, BD/2], the reflection.
    """
    begin = tl.program_id(1).to(tl.int64) * sequences
    end = tl.minimum(begin + sequences, B)
    row = tl.program_id(0).to(tl.int64) * BT
    local = tl.arange(0, BT)
    inside = row + local < T
    at = begin * p_b + row * p_t + local * p_t
    positions, cos, sin, reflection = angles_of(POSITIONS, FREQS, REFLECTION, at, inside, D, BD, REFLECTED, UNMASKED)
    return begin, end, row, local, inside, positions, cos, sin, reflection


@triton.jit
def _rotated_back(x, dy, d, cos, sin, reflection, dangles, D: tl.constexpr, BD: tl.constexpr, PHI: tl.constexpr,
                  REFLECTED: tl.constexpr, LEARNED: tl.constexpr):  # fmt: skip
    """dx: the gradient rotated back, reflected, times φ'; and dangles plus its own share.

    x is the input of the rotation, or without a feature map (PHI 0) its output. The share, dy_odd·y_even -
    dy_even·y_odd, is an area, which stays the same when both sides are rotated back: the features need not be rotated.
    """
    dy_even, dy_odd = pairs(dy.to(tl.float32))
    even, odd = dy_even * cos + dy_odd * sin, dy_odd * cos - dy_even * sin
    if LEARNED:
        if PHI == 0:
            y_even, y_odd = pairs(x.to(tl.float32))
            dangles += dy_odd * y_even - dy_even * y_odd
        else:
            x_even, x_odd = features(x, d, reflection, D, BD, PHI, REFLECTED)
            dangles += odd * x_even - even * x_odd
    dx = interleaved(even, odd)
    if REFLECTED:
        dx = reflected(dx, reflection)
    return dx * phi_slope(x, PHI), dangles


@triton.jit
def _forward(
    Q, K, YQ, YK, POSITIONS, FREQS, REFLECTION, B, T, H, sequences,
    q_b, q_t, q_h, k_b, k_t, k_h, y_b, y_t, y_h, p_b, p_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr,
    UNMASKED: tl.constexpr,
):  # fmt: skip
    begin, end, row, local, inside, _, cos, sin, reflection = _program(
        POSITIONS, FREQS, REFLECTION, B, T, sequences, p_b, p_t, D, BD, BT, REFLECTED, UNMASKED
    )
    d = tl.arange(0, BD)
    q_at, k_at, y_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t), tile_offsets(local, d, y_t)
    for batch in range(begin, end):
        for head in range(H):
            # Both are on their way before one is needed.
            q = load_tile(Q + batch * q_b + row * q_t + head * q_h, q_at, d, inside, D, UNMASKED, "")
            k = load_tile(K + batch * k_b + row * k_t + head * k_h, k_at, d, inside, D, UNMASKED, "")
            y = batch * y_b + row * y_t + head * y_h
            yq = rotated(q, d, cos, sin, reflection, D, BD, PHI, REFLECTED)
            store_tile(YQ + y, y_at, d, inside, D, yq, UNMASKED)
            yk = rotated(k, d, cos, sin, reflection, D, BD, PHI, REFLECTED)
            store_tile(YK + y, y_at, d, inside, D, yk, UNMASKED)


@triton.jit
def _backward(
    Q, K, DYQ, DYK, DQ, DK, SHARES, POSITIONS, FREQS, REFLECTION, B, T, H, sequences,
    q_b, q_t, q_h, k_b, k_t, k_h, yq_b, yq_t, yq_h, yk_b, yk_t, yk_h, d_b, d_t, d_h, p_b, p_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr,
    UNMASKED: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    begin, end, row, local, inside, positions, cos, sin, reflection = _program(
        POSITIONS, FREQS, REFLECTION, B, T, sequences, p_b, p_t, D, BD, BT, REFLECTED, UNMASKED
    )
    d = tl.arange(0, BD)
    q_at, k_at, dx_at = tile_offsets(local, d, q_t), tile_offsets(local, d, k_t), tile_offsets(local, d, d_t)
    yq_at, yk_at = tile_offsets(local, d, yq_t), tile_offsets(local, d, yk_t)
    dangles = tl.zeros((BT, BD // 2), tl.float32)
    for batch in range(begin, end):
        for head in range(H):
            q = load_tile(Q + batch * q_b + row * q_t + head * q_h, q_at, d, inside, D, UNMASKED, "")
            dyq = load_tile(DYQ + batch * yq_b + row * yq_t + head * yq_h, yq_at, d, inside, D, UNMASKED, "")
            k = load_tile(K + batch * k_b + row * k_t + head * k_h, k_at, d, inside, D, UNMASKED, "")
            dyk = load_tile(DYK + batch * yk_b + row * yk_t + head * yk_h, yk_at, d, inside, D, UNMASKED, "")
            dx = batch * d_b + row * d_t + head * d_h
            dq, dangles = _rotated_back(q, dyq, d, cos, sin, reflection, dangles, D, BD, PHI, REFLECTED, LEARNED)
            store_tile(DQ + dx, dx_at, d, inside, D, dq, UNMASKED)
            dk, dangles = _rotated_back(k, dyk, d, cos, sin, reflection, dangles, D, BD, PHI, REFLECTED, LEARNED)
            store_tile(DK + dx, dx_at, d, inside, D, dk, UNMASKED)
    if LEARNED:
        program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        pair = tl.arange(0, BD // 2)
        tl.store(SHARES + program * (D // 2) + pair, tl.sum(dangles * positions[:, None], 0), mask=pair < D // 2)


def _launch(
    q: Tensor, positions: Tensor, reflection: Tensor | None, phi: int, tile: int
) -> tuple[tuple[int, int], int, dict[str, Any]]:
    """The grid, the sequences of a program, and compile-time constants."""
    batch, length, _, size = q.shape
    columns = power_of_two(size)
    rows = min(tile // columns, _ROWS, power_of_two(length))
    blocks = triton.cdiv(length, rows)
    sequences = 1  # those of a program share their positions
    if position_strides(positions)[0] == 0:
        sequences = max(1, min(batch, batch * blocks * rows * columns // _AT_A_TIME))
    options = {
        "D": size,
        "BD": columns,
        "BT": rows,
        "PHI": phi,
        "REFLECTED": reflection is not None,
        # Tiles that lie inside of the tensors need no masks.
        "UNMASKED": length % rows == 0 and size == columns,
        "num_warps": 4,
    }
    return (blocks, triton.cdiv(batch, sequences)), sequences, options


def _near(x: Tensor) -> Tensor:
    """Rows, and heads, so near each other that their offsets have 32 bits."""
    x = near_rows(x)
    return x if x.stride(2) * x.shape[2] < 2**31 else x.contiguous()


@kernel_op("transnormer::rotate")
def _op(
    q: Tensor, k: Tensor, positions: Tensor, inverse_frequencies: Tensor, reflection: Tensor | None, phi: int
) -> tuple[Tensor, Tensor]:
    yq, yk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    grid, sequences, options = _launch(q, positions, reflection, phi, _TILE)
    _forward[grid](
        q, k, yq, yk, positions, inverse_frequencies, reflection, *q.shape[:3], sequences,
        *q.stride()[:3], *k.stride()[:3], *yq.stride()[:3], *position_strides(positions), **options,
    )  # fmt: skip
    return yq, yk


@_op.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(q.shape, dtype=q.dtype, device=q.device)


@kernel_op("transnormer::rotate_backward")
def _backward_op(
    q: Tensor,
    k: Tensor,
    dyq: Tensor,
    dyk: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    reflection: Tensor | None,
    phi: int,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, and dfrequencies as float32 [D/2] (zeros unless `learned`), summed over programs in a fixed order.

    Without a feature map (phi 0) `q` and `k` are the results of the forward.
    """
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    return dq, dk, backward_into((dq, dk), q, k, dyq, dyk, positions, inverse_frequencies, reflection, phi, learned)


def backward_into(
    gradients: tuple[Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    dyq: Tensor,
    dyk: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    reflection: Tensor | None,
    phi: int,
    learned: bool,
) -> Tensor:
    """Fill the gradients of q and k, which have the same strides; returns dfrequencies."""
    dq, dk = gradients
    dyq, dyk = _near(dyq), _near(dyk)
    grid, sequences, options = _launch(q, positions, reflection, phi, _TILE_BACKWARD)
    shares = torch.empty((grid[0] * grid[1] if learned else 0, q.shape[3] // 2), dtype=torch.float32, device=q.device)
    _backward[grid](
        q, k, dyq, dyk, dq, dk, shares, positions, inverse_frequencies, reflection, *q.shape[:3], sequences,
        *q.stride()[:3], *k.stride()[:3], *dyq.stride()[:3], *dyk.stride()[:3], *dq.stride()[:3],
        *position_strides(positions), **options, LEARNED=learned,
    )  # fmt: skip
    return shares.sum(dim=0)


@_backward_op.register_fake
def _(q: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    return dq, dk, torch.empty(q.shape[3] // 2, dtype=torch.float32, device=q.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.phi = inputs
    ctx.save_for_backward(*(output if ctx.phi == 0 else tensors[:2]), *tensors[2:])


def _differentiate(ctx: Any, dyq: Tensor, dyk: Tensor) -> tuple[Tensor | None, ...]:
    q, k, positions, inverse_frequencies, reflection = ctx.saved_tensors
    learned = ctx.needs_input_grad[3]
    dq, dk, dfrequencies = _backward_op(q, k, dyq, dyk, positions, inverse_frequencies, reflection, ctx.phi, learned)
    return dq, dk, None, dfrequencies if learned else None, None, None


_op.register_autograd(_differentiate, setup_context=_save)


def rotate(
    q: Tensor, k: Tensor, positions: Tensor, inverse_frequencies: Tensor, *, feature_map: str, reflection: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The kernel behind `transnormer.ops.rotate`; its arguments have been checked there."""
    reflection = None if reflection is None else reflection.float().contiguous()
    frequencies = inverse_frequencies.float().contiguous()
    yq, yk = _op(_near(q), _near(k), positions, frequencies, reflection, PHI_CODES[feature_map])
    return yq, yk
