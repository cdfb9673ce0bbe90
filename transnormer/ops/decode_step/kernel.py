"""A decode step of both attentions in Triton: a program takes one head of one sequence.

Everything between the projections is in it: φ, reflection, rotation, the change of the state and the attention.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.feature_maps import PHI_CODES, phi
from transnormer.ops.kernels.launch import cannot_launch, kernel_op, power_of_two, unit_stride
from transnormer.ops.kernels.rotation import cosines_and_sines, rotated
from transnormer.ops.kernels.tiles import load_state, store_state

MAX_HEAD_DIM = 128  # more, or more slots, and a program would spill its registers
MAX_SLOTS = 128
_NUMBERS_OF_A_WARP = 1024  # of a tile: 32 registers a thread


def why_not(
    *, device: str, q: Tensor | None = None, v: Tensor | None = None, slots: int | None = None, **_: Any
) -> str | None:
    """Why this call cannot run here, or None."""
    problem = cannot_launch(device, q, v, MAX_HEAD_DIM)
    if problem is None and slots is not None and slots > MAX_SLOTS:
        return f"a block of {slots} tokens is above {MAX_SLOTS}"
    return problem


@triton.jit
def _query_and_key(
    Q, K, FREQS, REFLECTION, batch, head, position, q_b, q_h, k_b, k_h,
    D: tl.constexpr, BD: tl.constexpr, PHI: tl.constexpr, ROTATED: tl.constexpr, REFLECTED: tl.constexpr,
):  # fmt: skip
    """The features of the token's query and key in one head, rotated: float32 [BD], zero behind D."""
    d = tl.arange(0, BD)
    q = tl.load(Q + batch * q_b + head * q_h + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    k = tl.load(K + batch * k_b + head * k_h + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    if ROTATED:
        pair = tl.arange(0, BD // 2)
        frequencies = tl.load(FREQS + pair, mask=pair < D // 2, other=0.0).to(tl.float32)
        cos, sin = cosines_and_sines((position.to(tl.float32) * frequencies)[None, :])
        reflection = tl.load(REFLECTION + d, mask=d < D, other=0.0).to(tl.float32) if REFLECTED else d.to(tl.float32)
        q = rotated(q, d, cos, sin, reflection, D, BD, PHI, REFLECTED)
        k = rotated(k, d, cos, sin, reflection, D, BD, PHI, REFLECTED)
    else:
        q, k = phi(q, d, PHI, D, D < BD), phi(k, d, PHI, D, D < BD)
    return tl.reshape(q, (BD,)), tl.reshape(k, (BD,))


@triton.jit
def _norm(
    Q, K, V, MEMORY, POSITIONS, FREQS, REFLECTION, OUT,
    q_b, q_h, k_b, k_h, v_b, v_h, p_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, PHI: tl.constexpr, ROTATED: tl.constexpr,
    REFLECTED: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    # The state is the longest way: it is on its way while the token is rotated.
    at = MEMORY + (batch * H + head) * D * E
    memory = load_state(at, d[:, None], e[None, :], D, E)
    v = tl.load(V + batch * v_b + head * v_h + e, mask=e < E, other=0.0).to(tl.float32)
    position = tl.load(POSITIONS + batch * p_b)
    q, k = _query_and_key(
        Q, K, FREQS, REFLECTION, batch, head, position, q_b, q_h, k_b, k_h, D, BD, PHI, ROTATED, REFLECTED
    )
    memory += k[:, None] * v[None, :]
    store_state(at, d[:, None], e[None, :], D, E, memory)
    out = tl.sum(q[:, None] * memory, 0)
    tl.store(OUT + (batch * H + head) * E + e, out.to(OUT.dtype.element_ty), mask=e < E)


@triton.jit
def _diag(
    Q, K, V, KEYS, VALUES, POSITIONS, FREQS, REFLECTION, OUT,
    q_b, q_h, k_b, k_h, v_b, v_h, p_b, keys_b, keys_s, keys_h, values_b, values_s, values_h, H, scale,
    S: tl.constexpr, BS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, RELA: tl.constexpr, ROTATED: tl.constexpr,
    REFLECTED: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, d = tl.arange(0, BS), tl.arange(0, BD)
    index = (tl.load(POSITIONS + batch * p_b) % S + S) % S  # % is that of C: never outside of the slots
    before = (slot[:, None] < index) & (d[None, :] < D)
    keys_at, values_at = KEYS + batch * keys_b + head * keys_h, VALUES + batch * values_b + head * values_h
    keys = tl.load(keys_at + slot[:, None] * keys_s + d[None, :], mask=before, other=0.0).to(tl.float32)
    values = tl.load(values_at + slot[:, None] * values_s + d[None, :], mask=before, other=0.0).to(tl.float32)
    v = tl.load(V + batch * v_b + head * v_h + d, mask=d < D, other=0.0)
    q, k = _query_and_key(Q, K, FREQS, REFLECTION, batch, head, index, q_b, q_h, k_b, k_h, D, BD, 0, ROTATED, REFLECTED)
    # Rounded as it will be for the tokens to come.
    k = k.to(KEYS.dtype.element_ty)
    tl.store(keys_at + index * keys_s + d, k, mask=d < D)
    tl.store(values_at + index * values_s + d, v, mask=d < D)
    newest = slot[:, None] == index
    keys = tl.where(newest, k.to(tl.float32)[None, :], keys)
    values = tl.where(newest, v.to(tl.float32)[None, :], values)
    scores = tl.sum(q[None, :] * keys, 1) * scale
    if RELA:
        # Slots behind the newest are zero here, and so are their scores.
        weights = tl.maximum(scores, 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        scores = tl.where(slot <= index, scores, float("-inf"))
        weights = tl.exp(scores - tl.max(scores, 0))
        weights = weights / tl.sum(weights, 0)
    out = tl.sum(weights[:, None] * values, 0)
    tl.store(OUT + (batch * H + head) * D + d, out.to(OUT.dtype.element_ty), mask=d < D)


def _warps(rows: int, columns: int) -> int:
    return max(1, min(16, rows * columns // _NUMBERS_OF_A_WARP))


@kernel_op("transnormer::norm_decode_step", mutates_args=("memory",))
def norm_decode_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    memory: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor | None,
    reflection: Tensor | None,
    feature_map: str,
) -> Tensor:
    """The kernel behind `transnormer.ops.norm_decode_step`; its arguments have been checked there."""
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    frequencies, reflection = (None if x is None else x.contiguous() for x in (inverse_frequencies, reflection))
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    batch, _, heads, size = q.shape
    columns, width = power_of_two(size), power_of_two(v.shape[-1])
    _norm[(batch, heads)](
        q, k, v, memory, positions, frequencies, reflection, out,
        *q.stride()[::2], *k.stride()[::2], *v.stride()[::2], positions.stride(0), heads,
        D=size, E=v.shape[-1], BD=columns, BE=width, PHI=PHI_CODES[feature_map], ROTATED=frequencies is not None,
        REFLECTED=reflection is not None, num_warps=_warps(columns, width),
    )  # fmt: skip
    return out


@kernel_op("transnormer::diag_decode_step", mutates_args=("keys", "values"))
def diag_decode_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor | None,
    reflection: Tensor | None,
    kind: str,
) -> Tensor:
    """The kernel behind `transnormer.ops.diag_decode_step`; its arguments have been checked there."""
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    frequencies, reflection = (None if x is None else x.contiguous() for x in (inverse_frequencies, reflection))
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    batch, _, heads, size = q.shape
    columns, rows = power_of_two(size), power_of_two(keys.shape[1])
    _diag[(batch, heads)](
        q, k, v, keys, values, positions, frequencies, reflection, out,
        *q.stride()[::2], *k.stride()[::2], *v.stride()[::2], positions.stride(0),
        *keys.stride()[:3], *values.stride()[:3], heads, size**-0.5,
        S=keys.shape[1], BS=rows, D=size, BD=columns, RELA=kind == "rela", ROTATED=frequencies is not None,
        REFLECTED=reflection is not None, num_warps=_warps(rows, columns),
    )  # fmt: skip
    return out


@norm_decode_step.register_fake
@diag_decode_step.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    return torch.empty(v.shape, dtype=v.dtype, device=v.device)
