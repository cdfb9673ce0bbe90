"""φ, reflection and rotation of queries and keys in one Triton kernel: each is read once and written once.

The backward reads the inputs again instead of keeping what lies between; without a feature map it reads the outputs,
which an attention keeps anyway. The gradient of the rates is summed program by program, in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.launch import cannot_launch, power_of_two, unit_stride
from transnormer.ops.norm_attention.kernel_tiles import PHI_CODES, load_rows, phi, phi_slope, store_rows

MAX_HEAD_DIM = 256
# Numbers of one head that a program holds at a time.
_TILE = 2048


def why_not(*, device: str, q: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, q, None, MAX_HEAD_DIM)


@triton.jit
def _reflected(tile, direction):
    """tile - 2(tile·n)n for each row; reflecting twice changes nothing, so this is its own backward."""
    return tile - 2.0 * tl.sum(tile * direction[None, :], 1)[:, None] * direction[None, :]


@triton.jit
def _pairs(tile):
    """The even and the odd columns of a tile."""
    return tl.split(tl.reshape(tile, (tile.shape[0], tile.shape[1] // 2, 2)))


@triton.jit
def _joined(even, odd):
    """The tile with these even and odd columns."""
    return tl.reshape(tl.join(even, odd), (even.shape[0], 2 * even.shape[1]))


@triton.jit
def _where(POSITIONS, RATES, DIRECTION, T, p_b, p_t, D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr,
           REFLECTED: tl.constexpr):  # fmt: skip
    """This program's rows, which of them exist, their positions, cosines and sines [BT, BD/2], and the mirror."""
    rows = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    inside = rows < T
    at = POSITIONS + tl.program_id(1).to(tl.int64) * p_b + rows * p_t
    positions = tl.load(at, mask=inside, other=0).to(tl.float32)
    pair = tl.arange(0, BD // 2)
    angles = positions[:, None] * tl.load(RATES + pair, mask=pair < D // 2, other=0.0)[None, :]
    d = tl.arange(0, BD)
    direction = tl.load(DIRECTION + d, mask=d < D, other=0.0) if REFLECTED else d.to(tl.float32)
    return rows, inside, positions, tl.cos(angles), tl.sin(angles), direction


@triton.jit
def _forward_one(
    X, Y, POSITIONS, RATES, DIRECTION, T, H, x_b, x_t, x_h, y_b, y_t, y_h, p_b, p_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    rows, inside, _, cos, sin, direction = _where(POSITIONS, RATES, DIRECTION, T, p_b, p_t, D, BD, BT, REFLECTED)
    batch = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BD)
    for head in range(H):
        x = load_rows(X + batch * x_b + head * x_h, rows, d, x_t, inside, D).to(tl.float32)
        features = phi(x, d, PHI, D, D < BD)
        if REFLECTED:
            features = _reflected(features, direction)
        even, odd = _pairs(features)
        turned = _joined(even * cos - odd * sin, even * sin + odd * cos)
        store_rows(Y + batch * y_b + head * y_h, rows, d, y_t, inside, D, turned)


@triton.jit
def _backward_one(
    X, DY, DX, SHARES, POSITIONS, RATES, DIRECTION, T, H, x_b, x_t, x_h, y_b, y_t, y_h, dx_b, dx_t, dx_h, p_b, p_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr,
    LEARNED: tl.constexpr,
):  # fmt: skip
    """Turn the gradient back, reflect it, times φ'; the angle's is dy_odd·y_even - dy_even·y_odd.

    X is the input of the rotation, or without a feature map (PHI 0) its output.
    """
    rows, inside, positions, cos, sin, direction = _where(
        POSITIONS, RATES, DIRECTION, T, p_b, p_t, D, BD, BT, REFLECTED
    )
    batch = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BD)
    dangles = tl.zeros((BT, BD // 2), tl.float32)
    for head in range(H):
        x = load_rows(X + batch * x_b + head * x_h, rows, d, x_t, inside, D).to(tl.float32)
        dy = load_rows(DY + batch * y_b + head * y_h, rows, d, y_t, inside, D).to(tl.float32)
        dy_even, dy_odd = _pairs(dy)
        dx = _joined(dy_even * cos + dy_odd * sin, dy_odd * cos - dy_even * sin)
        if REFLECTED:
            dx = _reflected(dx, direction)
        store_rows(DX + batch * dx_b + head * dx_h, rows, d, dx_t, inside, D, dx * phi_slope(x, PHI))
        if LEARNED:
            if PHI == 0:
                y_even, y_odd = _pairs(x)
            else:
                features = phi(x, d, PHI, D, D < BD)
                if REFLECTED:
                    features = _reflected(features, direction)
                even, odd = _pairs(features)
                y_even, y_odd = even * cos - odd * sin, even * sin + odd * cos
            dangles += dy_odd * y_even - dy_even * y_odd
    if LEARNED:
        program = (tl.program_id(2) * tl.num_programs(1) + batch) * tl.num_programs(0) + tl.program_id(0)
        pair = tl.arange(0, BD // 2)
        tl.store(SHARES + program * (D // 2) + pair, tl.sum(dangles * positions[:, None], 0), mask=pair < D // 2)


@triton.jit
def _forward(
    Q, K, YQ, YK, POSITIONS, RATES, DIRECTION, T, H, q_b, q_t, q_h, k_b, k_t, k_h, y_b, y_t, y_h, p_b, p_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """Queries and keys by different programs of one launch."""
    if tl.program_id(2) == 0:
        _forward_one(
            Q, YQ, POSITIONS, RATES, DIRECTION, T, H, q_b, q_t, q_h, y_b, y_t, y_h, p_b, p_t, D, BD, BT, PHI, REFLECTED
        )
    else:
        _forward_one(
            K, YK, POSITIONS, RATES, DIRECTION, T, H, k_b, k_t, k_h, y_b, y_t, y_h, p_b, p_t, D, BD, BT, PHI, REFLECTED
        )


@triton.jit
def _backward(
    Q, K, DYQ, DYK, DQ, DK, SHARES, POSITIONS, RATES, DIRECTION, T, H,
    q_b, q_t, q_h, k_b, k_t, k_h, yq_b, yq_t, yq_h, yk_b, yk_t, yk_h, d_b, d_t, d_h, p_b, p_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr,
    LEARNED: tl.constexpr,
):  # fmt: skip
    if tl.program_id(2) == 0:
        _backward_one(
            Q, DYQ, DQ, SHARES, POSITIONS, RATES, DIRECTION, T, H, q_b, q_t, q_h, yq_b, yq_t, yq_h, d_b, d_t, d_h,
            p_b, p_t, D, BD, BT, PHI, REFLECTED, LEARNED,
        )  # fmt: skip
    else:
        _backward_one(
            K, DYK, DK, SHARES, POSITIONS, RATES, DIRECTION, T, H, k_b, k_t, k_h, yk_b, yk_t, yk_h, d_b, d_t, d_h,
            p_b, p_t, D, BD, BT, PHI, REFLECTED, LEARNED,
        )  # fmt: skip


def _launch(q: Tensor, reflection: Tensor | None, phi: int) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """The grid, and compile-time constants."""
    batch, length, _, size = q.shape
    columns = power_of_two(size)
    rows = min(_TILE // columns, power_of_two(length))
    options = {"D": size, "BD": columns, "BT": rows, "PHI": phi, "REFLECTED": reflection is not None, "num_warps": 4}
    return (triton.cdiv(length, rows), batch, 2), options


def _position_strides(positions: Tensor) -> tuple[int, int]:
    return (0 if positions.dim() == 1 else positions.stride(0)), positions.stride(-1)


@torch.library.custom_op("transnormer::rotate", mutates_args=())
def _op(
    q: Tensor, k: Tensor, positions: Tensor, rates: Tensor, reflection: Tensor | None, phi: int
) -> tuple[Tensor, Tensor]:
    yq, yk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    grid, options = _launch(q, reflection, phi)
    _forward[grid](
        q, k, yq, yk, positions, rates, reflection, q.shape[1], q.shape[2],
        *q.stride()[:3], *k.stride()[:3], *yq.stride()[:3], *_position_strides(positions), **options,
    )  # fmt: skip
    return yq, yk


@_op.register_fake
def _(
    q: Tensor, k: Tensor, positions: Tensor, rates: Tensor, reflection: Tensor | None, phi: int
) -> tuple[Tensor, Tensor]:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(q.shape, dtype=q.dtype, device=q.device)


@torch.library.custom_op("transnormer::rotate_backward", mutates_args=())
def _backward_op(
    q: Tensor,
    k: Tensor,
    dyq: Tensor,
    dyk: Tensor,
    positions: Tensor,
    rates: Tensor,
    reflection: Tensor | None,
    phi: int,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, and drates as float32 [D/2] (zeros unless `learned`), summed over programs in a fixed order.

    Without a feature map (phi 0) `q` and `k` are the results of the forward.
    """
    dyq, dyk = unit_stride(dyq), unit_stride(dyk)
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    grid, options = _launch(q, reflection, phi)
    programs = grid[0] * grid[1] * grid[2] if learned else 0
    shares = torch.empty((programs, q.shape[3] // 2), dtype=torch.float32, device=q.device)
    _backward[grid](
        q, k, dyq, dyk, dq, dk, shares, positions, rates, reflection, q.shape[1], q.shape[2],
        *q.stride()[:3], *k.stride()[:3], *dyq.stride()[:3], *dyk.stride()[:3], *dq.stride()[:3],
        *_position_strides(positions), **options, LEARNED=learned,
    )  # fmt: skip
    return dq, dk, shares.sum(dim=0)


@_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    dyq: Tensor,
    dyk: Tensor,
    positions: Tensor,
    rates: Tensor,
    reflection: Tensor | None,
    phi: int,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    return dq, dk, torch.empty(q.shape[3] // 2, dtype=torch.float32, device=q.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.phi = inputs
    ctx.save_for_backward(*(output if ctx.phi == 0 else tensors[:2]), *tensors[2:])


def _differentiate(ctx: Any, dyq: Tensor, dyk: Tensor) -> tuple[Tensor | None, ...]:
    q, k, positions, rates, reflection = ctx.saved_tensors
    learned = ctx.needs_input_grad[3]
    dq, dk, drates = _backward_op(q, k, dyq, dyk, positions, rates, reflection, ctx.phi, learned)
    return dq, dk, None, drates if learned else None, None, None


_op.register_autograd(_differentiate, setup_context=_save)


def rotate(
    q: Tensor, k: Tensor, positions: Tensor, rates: Tensor, *, feature_map: str, reflection: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The kernel behind `transnormer.ops.rotate`; its arguments have been checked there."""
    direction = None if reflection is None else reflection.float().contiguous()
    yq, yk = _op(
        unit_stride(q), unit_stride(k), positions, rates.float().contiguous(), direction, PHI_CODES[feature_map]
    )
    return yq, yk
