"""NormAttention in Triton: φ on load, a float32 state in registers, any number of heads, any length.

Time is cut into P parts so that B·H·P programs fill the GPU: one part where there are many heads, several where there
are few. With one part, forward moves 4 tensors and backward 7. The backward walks the chunks in reverse and *undoes*
the state, S before a chunk = S after it − kᵀv, which works because nothing decays: no state per chunk is ever stored.

Results that live in registers are never transposed (Triton 3.4 to 3.7.0 miscompiles that on Hopper): where a product
needs Sᵀ or dSᵀ, the transpose is accumulated as a state of its own.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.launch import as_mask_bytes, cannot_launch, in_autocast_dtype, power_of_two, unit_stride

MAX_HEAD_DIM = 128
_PHI = {"identity": 0, "elu": 1, "1+elu": 2}
# About two programs for each of an H200's 132 multiprocessors; with this many (batch, head) pairs time is not cut.
_ENOUGH_PROGRAMS = 132
_WANTED_PROGRAMS = 264


def why_not(*, device: str, q: Tensor | None = None, v: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, q, v, MAX_HEAD_DIM)


@triton.jit
def _phi(x, columns, PHI: tl.constexpr, D: tl.constexpr, BD: tl.constexpr):
    """φ of a tile; columns that only fill up the tile stay zero, which 1+elu alone would not leave so."""
    if PHI == 0:
        return x
    wide = x.to(tl.float32)
    mapped = tl.where(wide > 0, wide, tl.exp(tl.minimum(wide, 0.0)) - 1.0)
    if PHI == 2:
        mapped = mapped + 1.0
        if D < BD:
            mapped = tl.where(columns[None, :] < D, mapped, 0.0)
    return mapped.to(x.dtype)


@triton.jit
def _phi_slope(x, PHI: tl.constexpr):
    wide = x.to(tl.float32)
    if PHI == 0:
        return tl.full(wide.shape, 1.0, tl.float32)
    return tl.where(wide > 0, 1.0, tl.exp(tl.minimum(wide, 0.0)))


@triton.jit
def _load(base, rows, columns, row_stride, inside, width: tl.constexpr):
    seen = inside[:, None] & (columns[None, :] < width)
    return tl.load(base + rows[:, None] * row_stride + columns[None, :], mask=seen, other=0.0)


@triton.jit
def _store(base, rows, columns, row_stride, inside, width: tl.constexpr, tile):
    seen = inside[:, None] & (columns[None, :] < width)
    tl.store(base + rows[:, None] * row_stride + columns[None, :], tile.to(base.dtype.element_ty), mask=seen)


@triton.jit
def _rows(chunk, T, MASK, batch, mask_b, C: tl.constexpr, HAS_MASK: tl.constexpr):
    """Rows of a chunk, which of them exist, and which of those are real tokens."""
    rows = chunk * C + tl.arange(0, C).to(tl.int64)
    inside = rows < T
    real = inside
    if HAS_MASK:
        real = inside & (tl.load(MASK + batch * mask_b + rows, mask=inside, other=0) != 0)
    return rows, inside, real


@triton.jit
def _keep(tile, real, NEEDED: tl.constexpr):
    """Zero the rows of a tile that are not real tokens (φ maps the zeros outside the sequence to something else)."""
    if NEEDED:
        return tl.where(real[:, None], tile, 0.0).to(tile.dtype)
    return tile


@triton.jit
def _state_at(base, d, e, D: tl.constexpr, E: tl.constexpr):
    """A state [D, E] from memory as a tile; swap d and e (as [1, :] and [:, 1]) to read its transpose."""
    return tl.load(base + d * E + e, mask=(d < D) & (e < E), other=0.0)


@triton.jit
def _part_sums(
    X, Y, SUMS, MASK, T, chunks, chunks_per_part, x_b, x_t, x_h, y_b, y_t, y_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Σ φ(x)ᵀy over each part: kᵀv for the states, qᵀdo for their gradients."""
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    total = tl.zeros((BD, BE), tl.float32)
    for chunk in range(part * chunks_per_part, min((part + 1) * chunks_per_part, chunks)):
        rows, inside, real = _rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        x = _keep(_phi(_load(X + batch * x_b + head * x_h, rows, d, x_t, inside, D), d, PHI, D, BD), real, True)
        y = _load(Y + batch * y_b + head * y_h, rows, e, y_t, inside, E)
        total = tl.dot(tl.trans(x), y, total, input_precision="ieee")
    base = SUMS + ((batch * H + head) * P + part) * D * E
    tl.store(base + d[:, None] * E + e[None, :], total, mask=(d[:, None] < D) & (e[None, :] < E))


@triton.jit
def _causal_forward(
    Q, K, V, O, BOUNDS, FINAL, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, STARTS_AT_ZERO: tl.constexpr,
):  # fmt: skip
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    local = tl.arange(0, C)
    pair = batch * H + head
    if STARTS_AT_ZERO:
        state = tl.zeros((BD, BE), tl.float32)
    else:
        state = _state_at(BOUNDS + (pair * P + part) * D * E, d[:, None], e[None, :], D, E)
    for chunk in range(part * chunks_per_part, min((part + 1) * chunks_per_part, chunks)):
        rows, inside, real = _rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        q = _phi(_load(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D), d, PHI, D, BD)
        k = _keep(_phi(_load(K + batch * k_b + head * k_h, rows, d, k_t, inside, D), d, PHI, D, BD), real, True)
        v = _load(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(local[:, None] >= local[None, :], scores, 0.0)
        out = tl.dot(q, state.to(q.dtype), input_precision="ieee")
        out = tl.dot(scores.to(v.dtype), v, out, input_precision="ieee")
        _store(O + batch * o_b + head * o_h, rows, e, o_t, inside, E, _keep(out, real, HAS_MASK))
        state = tl.dot(tl.trans(k), v, state, input_precision="ieee")
    if part == P - 1:
        tl.store(FINAL + pair * D * E + d[:, None] * E + e[None, :], state, mask=(d[:, None] < D) & (e[None, :] < E))


@triton.jit
def _causal_backward(
    Q, K, V, DO, DQ, DK, DV, ENDS, DENDS, DSTART, MASK, T, chunks, chunks_per_part,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h, mask_b, H, P,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr, ENDS_AT_ZERO: tl.constexpr, WANTS_DSTART: tl.constexpr,
):  # fmt: skip
    part, batch, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    local = tl.arange(0, C)
    at = ((batch * H + head) * P + part) * D * E
    state_t = _state_at(ENDS + at, d[None, :], e[:, None], D, E)  # [E, D]
    if ENDS_AT_ZERO:
        dstate = tl.zeros((BD, BE), tl.float32)
        dstate_t = tl.zeros((BE, BD), tl.float32)
    else:
        dstate = _state_at(DENDS + at, d[:, None], e[None, :], D, E)
        dstate_t = _state_at(DENDS + at, d[None, :], e[:, None], D, E)
    first = part * chunks_per_part
    last = min((part + 1) * chunks_per_part, chunks) - 1
    for step in range(last - first + 1):
        chunk = last - step
        rows, inside, real = _rows(chunk, T, MASK, batch, mask_b, C, HAS_MASK)
        q_raw = _load(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
        k_raw = _load(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
        q, k = _keep(_phi(q_raw, d, PHI, D, BD), real, True), _keep(_phi(k_raw, d, PHI, D, BD), real, True)
        v = _load(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
        do = _keep(_load(DO + batch * o_b + head * o_h, rows, e, o_t, inside, E), real, HAS_MASK)
        earlier = local[:, None] >= local[None, :]  # queries down, keys across
        later = local[None, :] >= local[:, None]  # keys down, queries across

        state_t = tl.dot(tl.trans(v), -k, state_t, input_precision="ieee")
        dscores = tl.where(earlier, tl.dot(do, tl.trans(v), input_precision="ieee"), 0.0)
        dq = tl.dot(do, state_t.to(do.dtype), input_precision="ieee")
        dq = tl.dot(dscores.to(k.dtype), k, dq, input_precision="ieee")
        _store(DQ + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dq * _phi_slope(q_raw, PHI))

        dscores_t = tl.where(later, tl.dot(v, tl.trans(do), input_precision="ieee"), 0.0)
        dk = tl.dot(v, dstate_t.to(v.dtype), input_precision="ieee")
        dk = tl.dot(dscores_t.to(q.dtype), q, dk, input_precision="ieee")
        dk = _keep(dk * _phi_slope(k_raw, PHI), real, HAS_MASK)
        _store(DK + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dk)

        scores_t = tl.where(later, tl.dot(k, tl.trans(q), input_precision="ieee"), 0.0)
        dv = tl.dot(k, dstate.to(k.dtype), input_precision="ieee")
        dv = tl.dot(scores_t.to(do.dtype), do, dv, input_precision="ieee")
        _store(DV + batch * dv_b + head * dv_h, rows, e, dv_t, inside, E, dv)

        dstate = tl.dot(tl.trans(q), do, dstate, input_precision="ieee")
        dstate_t = tl.dot(tl.trans(do), q, dstate_t, input_precision="ieee")
    if WANTS_DSTART and part == 0:
        base = DSTART + (batch * H + head) * D * E
        tl.store(base + d[:, None] * E + e[None, :], dstate, mask=(d[:, None] < D) & (e[None, :] < E))


@triton.jit
def _full_forward(
    Q, STATE, O, MASK, T, q_b, q_t, q_h, o_b, o_t, o_h, mask_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """o = φ(q)·S with the one state of a bidirectional sequence."""
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    rows, inside, real = _rows(tl.program_id(0), T, MASK, batch, mask_b, C, HAS_MASK)
    q = _phi(_load(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D), d, PHI, D, BD)
    state = _state_at(STATE + (batch * H + head) * D * E, d[:, None], e[None, :], D, E)
    out = tl.dot(q, state.to(q.dtype), input_precision="ieee")
    _store(O + batch * o_b + head * o_h, rows, e, o_t, inside, E, _keep(out, real, HAS_MASK))


@triton.jit
def _full_backward(
    Q, K, V, DO, DQ, DK, DV, STATE, DSTATE, MASK, T,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h, dq_b, dq_t, dq_h, dv_b, dv_t, dv_h, mask_b, H,
    D: tl.constexpr, E: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, C: tl.constexpr,
    PHI: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """dq = do·Sᵀ, dk = v·dSᵀ, dv = φ(k)·dS; the transposes are read from memory as such."""
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    rows, inside, real = _rows(tl.program_id(0), T, MASK, batch, mask_b, C, HAS_MASK)
    at = (batch * H + head) * D * E
    state_t = _state_at(STATE + at, d[None, :], e[:, None], D, E)
    dstate = _state_at(DSTATE + at, d[:, None], e[None, :], D, E)
    dstate_t = _state_at(DSTATE + at, d[None, :], e[:, None], D, E)

    do = _keep(_load(DO + batch * o_b + head * o_h, rows, e, o_t, inside, E), real, HAS_MASK)
    q_raw = _load(Q + batch * q_b + head * q_h, rows, d, q_t, inside, D)
    dq = tl.dot(do, state_t.to(do.dtype), input_precision="ieee") * _phi_slope(q_raw, PHI)
    _store(DQ + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, dq)

    k_raw = _load(K + batch * k_b + head * k_h, rows, d, k_t, inside, D)
    v = _load(V + batch * v_b + head * v_h, rows, e, v_t, inside, E)
    dk = tl.dot(v, dstate_t.to(v.dtype), input_precision="ieee") * _phi_slope(k_raw, PHI)
    _store(DK + batch * dq_b + head * dq_h, rows, d, dq_t, inside, D, _keep(dk, real, HAS_MASK))
    k = _keep(_phi(k_raw, d, PHI, D, BD), real, True)
    dv = tl.dot(k, dstate.to(k.dtype), input_precision="ieee")
    _store(DV + batch * dv_b + head * dv_h, rows, e, dv_t, inside, E, dv)


class _Plan:
    """How one call is cut and launched."""

    def __init__(self, q: Tensor, v: Tensor, mask: Tensor | None, phi: int, causal: bool) -> None:
        self.batch, self.length, self.heads, self.d = q.shape
        self.e = v.shape[3]
        wide = max(self.d, self.e) > 64
        self.chunk = 64 if self.length > 32 else power_of_two(self.length)
        self.chunks = triton.cdiv(self.length, self.chunk)
        pairs = self.batch * self.heads
        parts = 1 if pairs >= _ENOUGH_PROGRAMS else min(self.chunks, triton.cdiv(_WANTED_PROGRAMS, pairs))
        self.chunks_per_part = triton.cdiv(self.chunks, parts)
        self.parts = triton.cdiv(self.chunks, self.chunks_per_part)
        self.mask_stride = 0 if mask is None else mask.stride(0)
        self.options: dict[str, Any] = {
            "D": self.d,
            "E": self.e,
            "BD": power_of_two(self.d),
            "BE": power_of_two(self.e),
            "C": self.chunk,
            "PHI": phi,
            "HAS_MASK": mask is not None,
            "num_warps": 8 if wide else 4,
            "num_stages": 2,
        }

    def states(self, like: Tensor, parts: int | None = None) -> Tensor:
        """Room for float32 states [B, H, (parts,) D, E]."""
        middle = () if parts is None else (parts,)
        return torch.empty((self.batch, self.heads, *middle, self.d, self.e), dtype=torch.float32, device=like.device)

    def part_sums(self, x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
        """Σ φ(x)ᵀy over each part: [B, H, P, D, E]."""
        sums = self.states(x, self.parts)
        _part_sums[(self.parts, self.batch, self.heads)](
            x, y, sums, mask, self.length, self.chunks, self.chunks_per_part, *x.stride()[:3], *y.stride()[:3],
            self.mask_stride, self.heads, self.parts, **self.options,
        )  # fmt: skip
        return sums


@torch.library.custom_op("transnormer::norm_attention", mutates_args=())
def _op(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: Tensor | None, causal: bool, phi: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states [B, H, P, D, E] at the end of each part that the backward starts from."""
    plan = _Plan(q, v, mask, phi, causal)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if not causal:
        final = plan.part_sums(k, v, mask).sum(dim=2)
        if state is not None:
            final += state
        _full_forward[(plan.chunks, plan.batch, plan.heads)](
            q, final, out, mask, plan.length, *q.stride()[:3], *out.stride()[:3], plan.mask_stride, plan.heads,
            **plan.options,
        )  # fmt: skip
        return out, final, final.new_empty(0)

    final = plan.states(q)
    starts = None if state is None else state.unsqueeze(2)
    if plan.parts > 1:
        sums = plan.part_sums(k, v, mask)
        first = torch.zeros_like(sums[:, :, :1]) if state is None else state.unsqueeze(2)
        starts = torch.cat([first, sums[:, :, :-1]], dim=2).cumsum(dim=2)
    _causal_forward[(plan.parts, plan.batch, plan.heads)](
        q, k, v, out, starts if starts is None else starts.contiguous(), final, mask, plan.length, plan.chunks,
        plan.chunks_per_part, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], plan.mask_stride,
        plan.heads, plan.parts, **plan.options, STARTS_AT_ZERO=starts is None,
    )  # fmt: skip
    if starts is None or plan.parts == 1:
        return out, final, final.new_empty(0)
    return out, final, torch.cat([starts[:, :, 1:], final.unsqueeze(2)], dim=2)


@_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: Tensor | None, causal: bool, phi: int
) -> tuple[Tensor, Tensor, Tensor]:
    plan = _Plan(q, v, mask, phi, causal)
    final = plan.states(q)
    ends = plan.states(q, plan.parts) if causal and plan.parts > 1 else final.new_empty(0)
    return torch.empty(v.shape, dtype=v.dtype, device=v.device), final, ends


@torch.library.custom_op("transnormer::norm_attention_backward", mutates_args=())
def _backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    dfinal: Tensor | None,
    final: Tensor,
    ends: Tensor,
    mask: Tensor | None,
    causal: bool,
    phi: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and of the initial state."""
    plan = _Plan(q, v, mask, phi, causal)
    do = unit_stride(do)
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    strides = [stride for x in (q, k, v, do, dq, dv) for stride in x.stride()[:3]]
    if not causal:
        dstate = plan.part_sums(q, do, mask).sum(dim=2)
        dtotal = dstate if dfinal is None else dstate + dfinal
        _full_backward[(plan.chunks, plan.batch, plan.heads)](
            q, k, v, do, dq, dk, dv, final, dtotal, mask, plan.length, *strides, plan.mask_stride, plan.heads,
            **plan.options,
        )  # fmt: skip
        return dq, dk, dv, dtotal

    dends = None if dfinal is None else dfinal.unsqueeze(2)
    if plan.parts > 1:
        sums = plan.part_sums(q, do, mask)
        last = torch.zeros_like(sums[:, :, :1]) if dfinal is None else dfinal.unsqueeze(2)
        dends = torch.cat([sums[:, :, 1:], last], dim=2).flip(2).cumsum(dim=2).flip(2)
    dstart = plan.states(q)
    _causal_backward[(plan.parts, plan.batch, plan.heads)](
        q, k, v, do, dq, dk, dv, final if plan.parts == 1 else ends, dends if dends is None else dends.contiguous(),
        dstart, mask, plan.length, plan.chunks, plan.chunks_per_part, *strides, plan.mask_stride, plan.heads,
        plan.parts, **plan.options, ENDS_AT_ZERO=dends is None, WANTS_DSTART=True,
    )  # fmt: skip
    return dq, dk, dv, dstart


@_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    dfinal: Tensor | None,
    final: Tensor,
    ends: Tensor,
    mask: Tensor | None,
    causal: bool,
    phi: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    return dq, dk, torch.empty(v.shape, dtype=v.dtype, device=v.device), torch.empty_like(final)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, mask, state, ctx.causal, ctx.phi = inputs
    ctx.has_state = state is not None
    ctx.save_for_backward(q, k, v, mask, *output[1:])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dfinal: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    q, k, v, mask, final, ends = ctx.saved_tensors
    if do is None:
        do = torch.zeros_like(v)
    dq, dk, dv, dstate = _backward_op(q, k, v, do, dfinal, final, ends, mask, ctx.causal, ctx.phi)
    return dq, dk, dv, None, dstate if ctx.has_state else None, None, None


_op.register_autograd(_differentiate, setup_context=_save)


def norm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str,
    mask: Tensor | None,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The kernel behind `transnormer.ops.norm_attention`; its arguments have been checked there."""
    q, k, v = (unit_stride(in_autocast_dtype(x)) for x in (q, k, v))
    state = None if state is None else state.contiguous()
    out, final, _ = _op(q, k, v, as_mask_bytes(mask), state, causal, _PHI[feature_map])
    return out, final
