"""NormAttention in Triton: φ on load, a float32 state in registers, any number of heads, any length.

Time is cut into P segments so that B·H·P programs fill the GPU: one segment where there are many heads, several where
there are few; then a first pass sums kᵀv over each segment. Uncut and with a head size up to 64, forward moves 4
tensors and backward 7: the backward *undoes* the state chunk by chunk, S before a chunk = S after it − kᵀv, which works
because nothing decays. It is stored after 4,096 tokens, 8,192, 16,384 and so on, from where the undoing begins anew.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transnormer.ops.kernels.feature_maps import PHI_CODES
from transnormer.ops.kernels.launch import (
    as_mask_integers,
    cannot_launch,
    empty_gradients,
    empty_square_sums,
    kernel_op,
    near_rows,
    too_large_in_float32,
)
from transnormer.ops.kernels.rotation import NO_ROTATION, Rotation
from transnormer.ops.kernels.shared_memory import launch
from transnormer.ops.norm_attention.kernel_causal import (
    causal_backward,
    causal_dk,
    causal_dq,
    causal_dv,
    causal_forward,
)
from transnormer.ops.norm_attention.kernel_full import full_backward, full_forward
from transnormer.ops.norm_attention.kernel_plan import Plan
from transnormer.ops.packed import PackedBounds

MAX_HEAD_DIM = 256
WIDEST_HEAD = 128
# Values of a width that this divides are read 16 bytes at a time. Those with a column more, for a denominator, begin at
# any address and would be read number by number: 33 columns of bfloat16 take 138 loads in the backward, 48 take 26.
# Wider values than these take other kernels, which have not been run on padded ones.
_ALIGNED, _WIDEST_PADDED = 8, 64


def why_not(*, device: str, q: Tensor | None = None, v: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, q, v, MAX_HEAD_DIM) or too_large_in_float32(q, v)


@kernel_op("transnormer::norm_attention")
def _op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bounds: Tensor | None,
    state: Tensor | None,
    causal: bool,
    phi: int,
    squared: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, the states at the borders of segments or of whole sequences, and Σ out² [B, T, H] if `squared`."""
    return attended(q, k, v, mask, state, causal, phi, squared, NO_ROTATION, bounds)


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    state: Tensor | None,
    causal: bool,
    phi: int,
    squared: bool,
    rotation: Rotation,
    bounds: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `_op`; a bidirectional attention may rotate φ(q) and φ(k) as it reads them."""
    plan = Plan(q, v, mask, causal, phi, bounds)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    squares = empty_square_sums(v, squared)
    if not causal:
        total, rounded, _ = plan.total(k, v, mask, state, rotation=rotation)
        together = rotation.heads_per_program(plan.heads, math.prod(plan.chunks()) // plan.heads)
        stages = 1 if together == 1 else 3  # loads of the next head on their way
        launch(full_forward, plan.chunks(together))(
            q, rounded, out, squares, mask, bounds, *rotation.arguments(bool(plan.packed)), plan.per_row,
            plan.length, together, *plan.strides(q, out), plan.mask_stride, plan.heads,
            **plan.tiles | {"num_stages": stages}, **rotation.options(), SQUARED=squared,
            UNMASKED=plan.unmasked(plan.chunk),
        )  # fmt: skip
        return out, total, squares
    assert rotation is NO_ROTATION, "a causal scan does not rotate what it reads"
    borders = plan.scanned(k, v, mask, state, backward=False)
    for step in plan.launches():
        launch(causal_forward, plan.grid())(
            q, k, v, out, squares, borders[:, :, step.offset :], mask, bounds,
            *plan.scan(plan.forward_chunk, step.tokens), step.segment, *plan.strides(q, k, v, out), *plan.last,
            **plan.forward_tiles(), STARTS_AT_ZERO=state is None, HANDS_ON=plan.in_sequence, SQUARED=squared,
        )  # fmt: skip
    return out, borders, squares


@_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *call: Any) -> tuple[Tensor, Tensor, Tensor]:
    bounds, _, causal, phi, squared = call
    plan = Plan(q, v, mask, causal, phi, bounds)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    return out, plan.empty_borders(q) if causal else plan.empty_totals(q), empty_square_sums(v, squared)


@kernel_op("transnormer::norm_attention_backward")
def _backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    dfinal: Tensor | None,
    borders: Tensor,
    mask: Tensor | None,
    bounds: Tensor | None,
    carried: bool,
    causal: bool,
    phi: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, and of the states that the forward returned."""
    gradients = empty_gradients(q, v)
    dstates = backward_into(gradients, q, k, v, do, dfinal, borders, mask, carried, causal, phi, bounds)
    return *gradients, dstates


def backward_into(
    gradients: tuple[Tensor, Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    dfinal: Tensor | None,
    borders: Tensor,
    mask: Tensor | None,
    carried: bool,
    causal: bool,
    phi: int,
    bounds: Tensor | None = None,
) -> Tensor:
    """Fill the gradients of q, k and v, of which the first two have the same strides; returns those of the states."""
    dq, dk, dv = gradients
    plan = Plan(q, v, mask, causal, phi, bounds)
    do = near_rows(do)
    if not causal:
        dtotal, drounded, rounded = plan.total(q, do, mask, dfinal, other=borders)
        launch(full_backward, plan.chunks())(
            q, k, v, do, dq, dk, dv, rounded, drounded, mask, bounds, plan.per_row, plan.length,
            *plan.strides(q, k, v, do, dq, dv), plan.mask_stride, plan.heads, **plan.tiles,
            UNMASKED=plan.unmasked(plan.chunk),
        )  # fmt: skip
        return dtotal

    dborders = plan.scanned(q, do, mask, dfinal, backward=True)
    ends_at_zero = dfinal is None
    if not plan.wide:
        same_strides = q.stride() == k.stride() == v.stride() and dq.stride() == dv.stride()
        for step in reversed(plan.launches()):
            launch(causal_backward, plan.grid())(
                q, k, v, do, dq, dk, dv, borders[:, :, step.offset :], dborders[:, :, step.offset :], mask, bounds,
                *plan.scan(plan.chunk, step.tokens), step.segment, *plan.strides(q, k, v, do, dq, dv), *plan.last,
                **plan.tiles, ENDS_AT_ZERO=ends_at_zero, HANDS_ON=plan.in_sequence,
                UNMASKED=plan.unmasked(plan.chunk), SAME_STRIDES=same_strides,
            )  # fmt: skip
        return dborders
    scan, unmasked = plan.scan(plan.chunk), plan.unmasked(plan.chunk)
    by_d, by_e = plan.pieces(plan.bd), plan.pieces(plan.be)
    launch(causal_dq, plan.grid(by_d["PIECES"]))(
        q, k, v, do, dq, borders, mask, bounds, *scan, *plan.strides(q, k, v, do, dq), *plan.last, **plan.sizes,
        **by_d, BE=plan.be, STARTS_AT_ZERO=not carried, UNMASKED=unmasked,
    )  # fmt: skip
    launch(causal_dk, plan.grid(by_d["PIECES"]))(
        q, k, v, do, dk, dborders, mask, bounds, *scan, *plan.strides(q, k, v, do, dk), *plan.last, **plan.sizes,
        **by_d, BE=plan.be, ENDS_AT_ZERO=ends_at_zero, UNMASKED=unmasked,
    )  # fmt: skip
    launch(causal_dv, plan.grid(by_e["PIECES"]))(
        q, k, do, dv, dborders, mask, bounds, *scan, *plan.strides(q, k, do, dv), *plan.last, **plan.sizes,
        **by_e, BD=plan.bd, ENDS_AT_ZERO=ends_at_zero, HANDS_ON=plan.in_sequence, UNMASKED=unmasked,
    )  # fmt: skip
    return dborders


@_backward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *_, borders, _mask, _bounds, _carried, _causal, _phi = call
    return *empty_gradients(q, v), torch.empty_like(borders)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, mask, bounds, state, ctx.causal, ctx.phi, _ = inputs
    ctx.carried = state is not None
    ctx.save_for_backward(q, k, v, mask, bounds, output[1])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, dborders: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    q, k, v, mask, bounds, borders = ctx.saved_tensors
    if do is None:
        do = torch.zeros_like(v)
    plan = Plan(q, v, mask, ctx.causal, ctx.phi, bounds)
    dfinal = None if dborders is None else plan.at_ends(dborders).contiguous()
    dq, dk, dv, dborders = _backward_op(q, k, v, do, dfinal, borders, mask, bounds, ctx.carried, ctx.causal, ctx.phi)
    return dq, dk, dv, None, None, plan.at_starts(dborders) if ctx.carried else None, None, None, None


_op.register_autograd(_differentiate, setup_context=_save)


def norm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    feature_map: str,
    mask: Tensor | None,
    bounds: PackedBounds | None,
    state: Tensor | None,
    return_state: bool,
    square_sums: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The kernel behind `transnormer.ops.norm_attention`; its arguments have been checked there.

    Heads wider than 128 are computed in blocks: φ(q)φ(k)ᵀ is the sum over blocks of features, and the columns of v
    know nothing of each other. Square sums, which have no gradient, are returned of single blocks if asked for.
    """
    width = v.shape[3]
    if width % _ALIGNED and width < _WIDEST_PADDED:
        spare = (0, -width % (2 * _ALIGNED))
        state = None if state is None else F.pad(state, spare)
        out, memory, squares = norm_attention(
            q,
            k,
            F.pad(v, spare),
            causal=causal,
            feature_map=feature_map,
            mask=mask,
            bounds=bounds,
            state=state,
            return_state=return_state,
            square_sums=square_sums,
        )
        return out[..., :width], None if memory is None else memory[..., :width], squares
    q, k, v = (near_rows(x) for x in (q, k, v))
    mask, code = as_mask_integers(mask), PHI_CODES[feature_map]

    def block(d: slice, e: slice, squared: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        start = None if state is None else state[:, :, d, e].contiguous()
        parts = q[..., d], k[..., d], v[..., e]
        cut = bounds_of(parts[0], parts[2], causal, bounds)
        out, states, squares = _op(*parts, mask, cut, start, causal, code, squared)
        memory = Plan(parts[0], parts[2], mask, causal, code, cut).at_ends(states) if return_state else None
        return out, memory, squares if squared else None

    features, columns = _tiles(q.shape[3]), _tiles(v.shape[3])
    if len(features) == len(columns) == 1:
        return block(features[0], columns[0], square_sums)
    outs, memories = [], []
    for e in columns:
        results = [block(d, e, squared=False) for d in features]
        outs.append(torch.stack([out.float() for out, *_ in results]).sum(dim=0).to(v.dtype))
        memories.append([memory for _, memory, _ in results if memory is not None])
    memory = torch.cat([torch.cat(rows, dim=2) for rows in memories], dim=-1) if return_state else None
    return torch.cat(outs, dim=-1), memory, None


def bounds_of(q: Tensor, v: Tensor, causal: bool, bounds: PackedBounds | None) -> Tensor | None:
    """The bounds of packed sequences as the kernels of such a call want them: with parts to cut them into, or uncut."""
    if bounds is None:
        return None
    begins = bounds.cu_seqlens[None]
    cut = Plan(q, v, None, causal, 0, begins.expand(2, -1))
    if causal and bounds.longest is not None:
        # What is not differentiated is cut only where there would be too few programs, or sequences are too long.
        fits = cut.segment if torch.is_grad_enabled() else Plan(q, v, None, causal, 0, begins).segment
        if bounds.longest <= fits:
            return bounds.cut()
    return bounds.cut(*cut.cuts)


def _tiles(width: int) -> list[slice]:
    """The columns of a head in pieces that a kernel can take."""
    return [slice(start, start + WIDEST_HEAD) for start in range(0, width, WIDEST_HEAD)]
