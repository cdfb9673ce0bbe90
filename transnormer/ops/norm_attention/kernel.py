"""NormAttention in Triton: φ on load, a float32 state in registers, any number of heads, any length.

Time is cut into P parts so that B·H·P programs fill the GPU: one part where there are many heads, several where there
are few; then a first pass sums kᵀv over each part. With one part and a head size up to 64, forward moves 4 tensors and
backward 7: the backward *undoes* the state chunk by chunk, S before a chunk = S after it − kᵀv, which works because
nothing decays, so no state per chunk is ever stored.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from transnormer.ops.launch import (
    as_mask_bytes,
    cannot_launch,
    in_autocast_dtype,
    power_of_two,
    too_large_in_float32,
    unit_stride,
)
from transnormer.ops.norm_attention.kernel_causal import (
    causal_backward,
    causal_dk,
    causal_dq,
    causal_dv,
    causal_forward,
)
from transnormer.ops.norm_attention.kernel_full import full_backward, full_forward
from transnormer.ops.norm_attention.kernel_tiles import PHI_CODES, part_sums, scan_parts

MAX_HEAD_DIM = 128
_WIDEST_PIECE = 64
# Four programs on each of an H200's 132 multiprocessors fill it; from half of that on, cutting time costs more than
# it brings (measured at 128, 256 and 512 pairs of batch and head).
_FULL = 512
_ENOUGH = 256


def why_not(*, device: str, q: Tensor | None = None, v: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, q, v, MAX_HEAD_DIM) or too_large_in_float32(q, v)


class _Plan:
    """How one call is cut into chunks, parts and programs."""

    def __init__(self, q: Tensor, v: Tensor, mask: Tensor | None, phi: int) -> None:
        self.batch, self.length, self.heads, self.d = q.shape
        self.e = v.shape[3]
        self.bd, self.be = power_of_two(self.d), power_of_two(self.e)
        self.chunk = min(64, power_of_two(self.length))
        self.chunks = triton.cdiv(self.length, self.chunk)
        pairs = self.batch * self.heads
        parts = 1 if pairs >= _ENOUGH else min(self.chunks, triton.cdiv(_FULL, pairs))
        self.chunks_per_part = triton.cdiv(self.chunks, parts)
        self.parts = triton.cdiv(self.chunks, self.chunks_per_part)
        self.wide = max(self.bd, self.be) > _WIDEST_PIECE
        self.mask_stride = 0 if mask is None else mask.stride(0)
        self.sizes: dict[str, Any] = {"D": self.d, "E": self.e, "C": self.chunk, "PHI": phi}
        self.sizes |= {"HAS_MASK": mask is not None, "num_stages": 2}
        self.tiles = {**self.sizes, "BD": self.bd, "BE": self.be, "num_warps": 8 if self.wide else 4}
        self.walk = (self.length, self.chunks, self.chunks_per_part)
        self.last = (self.mask_stride, self.heads, self.parts)

    def pieces(self, columns: int) -> dict[str, int]:
        """How the columns of a result are shared out among programs."""
        piece = min(columns, _WIDEST_PIECE)
        return {"PIECE": piece, "PIECES": columns // piece, "num_warps": 4}

    def grid(self, pieces: int = 1) -> tuple[int, int, int]:
        return self.parts, self.batch, self.heads * pieces

    def states(self, like: Tensor, count: int) -> Tensor:
        """Room for float32 states [B, H, count, D, E]."""
        return torch.empty((self.batch, self.heads, count, self.d, self.e), dtype=torch.float32, device=like.device)

    def squares(self, like: Tensor, pieces: int) -> Tensor:
        """Room for sums of squares [B, H, pieces, T]: a program writes those of its rows side by side."""
        return torch.empty((self.batch, self.heads, pieces, self.length), dtype=torch.float32, device=like.device)

    def sums(self, x: Tensor, y: Tensor, mask: Tensor | None, squared: _Squared) -> Tensor:
        """Σ φ(x)ᵀy over each part: [B, H, P, D, E]."""
        sums = self.states(x, self.parts)
        part_sums[self.grid()](
            x, y, sums, *squared.tensors, mask, *self.walk, *_strides(x, y), *squared.strides, *self.last,
            **self.tiles, SQUARED=squared.used,
        )  # fmt: skip
        return sums

    def borders(
        self, x: Tensor, y: Tensor, mask: Tensor | None, start: Tensor | None, squared: _Squared, backward: bool
    ) -> Tensor:
        """The states at the borders of the parts [B, H, P + 1, D, E], walked forward from `start` or backward."""
        borders = self.states(x, self.parts + 1)
        if self.parts == 1:
            if start is not None:
                borders[:, :, 1 if backward else 0] = start
            return borders  # the walk itself writes the other border
        size, block = self.d * self.e, 1024
        scan_parts[(self.batch * self.heads, triton.cdiv(size, block))](
            self.sums(x, y, mask, squared), start, borders, self.parts, size, start is None, backward, block
        )
        return borders


class _Squared:
    """What a backward kernel reads when the sums of squares of the output were used: the output and their gradient."""

    def __init__(self, out: Tensor | None, dsquares: Tensor | None) -> None:
        self.used = dsquares is not None
        self.tensors = (out, dsquares)
        self.strides = (0, 0, 0) if dsquares is None else dsquares.stride()


_NOT_SQUARED = _Squared(None, None)


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


@torch.library.custom_op("transnormer::norm_attention", mutates_args=())
def _op(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: Tensor | None, causal: bool, phi: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, states at the borders of the parts (the last is the final one), and Σ out² [B, T, H] if `squared`."""
    plan = _Plan(q, v, mask, phi)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    pieces = plan.pieces(plan.be)
    squares = plan.squares(q, pieces["PIECES"] if causal else 1) if squared else None
    if not causal:
        total = plan.sums(k, v, mask, _NOT_SQUARED).sum(dim=2, keepdim=True)
        if state is not None:
            total += state.unsqueeze(2)
        full_forward[(plan.chunks, plan.batch, plan.heads)](
            q, total, out, squares, mask, plan.length, *_strides(q, out), plan.mask_stride, plan.heads, **plan.tiles,
            SQUARED=squared,
        )  # fmt: skip
        return out, total, _over_pieces(squares, q)
    borders = plan.borders(k, v, mask, state, _NOT_SQUARED, backward=False)
    # Capped registers let four programs share a multiprocessor instead of two, at the cost of an 8-byte spill.
    capped = {} if plan.wide else {"maxnreg": 128}
    causal_forward[plan.grid(pieces["PIECES"])](
        q, k, v, out, squares, borders, mask, *plan.walk, *_strides(q, k, v, out), *plan.last, **plan.sizes, **pieces,
        **capped, BD=plan.bd, STARTS_AT_ZERO=plan.parts == 1 and state is None, WRITES_END=plan.parts == 1,
        SQUARED=squared,
    )  # fmt: skip
    return out, borders, _over_pieces(squares, q)


def _over_pieces(squares: Tensor | None, like: Tensor) -> Tensor:
    """[B, H, pieces, T] -> [B, T, H]; empty where nobody asked for it, because an op returns tensors only."""
    if squares is None:
        return torch.empty(0, dtype=torch.float32, device=like.device)
    return (squares.squeeze(2) if squares.shape[2] == 1 else squares.sum(dim=2)).mT


@_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: Tensor | None, causal: bool, phi: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    plan = _Plan(q, v, mask, phi)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    squares = _over_pieces(plan.squares(q, 1) if squared else None, q)
    return out, plan.states(q, plan.parts + 1 if causal else 1), squares


@torch.library.custom_op("transnormer::norm_attention_backward", mutates_args=())
def _backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    out: Tensor | None,
    dsquares: Tensor | None,
    dfinal: Tensor | None,
    borders: Tensor,
    mask: Tensor | None,
    carried: bool,
    causal: bool,
    phi: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, and of the states at the borders, of which the first belongs to the initial state."""
    plan = _Plan(q, v, mask, phi)
    do = unit_stride(do)
    squared = _Squared(out, dsquares)
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if not causal:
        dtotal = plan.sums(q, do, mask, squared).sum(dim=2, keepdim=True)
        if dfinal is not None:
            dtotal += dfinal.unsqueeze(2)
        full_backward[(plan.chunks, plan.batch, plan.heads)](
            q, k, v, do, dq, dk, dv, borders, dtotal, *squared.tensors, mask, plan.length,
            *_strides(q, k, v, do, dq, dv), *squared.strides, plan.mask_stride, plan.heads, **plan.tiles,
            SQUARED=squared.used,
        )  # fmt: skip
        return dq, dk, dv, dtotal

    dborders = plan.borders(q, do, mask, dfinal, squared, backward=True)
    one_part = plan.parts == 1
    ends_at_zero = one_part and dfinal is None
    if not plan.wide:
        causal_backward[plan.grid()](
            q, k, v, do, dq, dk, dv, borders, dborders, *squared.tensors, mask, *plan.walk,
            *_strides(q, k, v, do, dq, dv), *squared.strides, *plan.last, **plan.tiles, ENDS_AT_ZERO=ends_at_zero,
            WRITES_START=one_part, SQUARED=squared.used,
        )  # fmt: skip
        return dq, dk, dv, dborders
    by_d, by_e = plan.pieces(plan.bd), plan.pieces(plan.be)
    causal_dq[plan.grid(by_d["PIECES"])](
        q, k, v, do, dq, borders, *squared.tensors, mask, *plan.walk, *_strides(q, k, v, do, dq), *squared.strides,
        *plan.last, **plan.sizes, **by_d, BE=plan.be, STARTS_AT_ZERO=one_part and not carried, SQUARED=squared.used,
    )  # fmt: skip
    causal_dk[plan.grid(by_d["PIECES"])](
        q, k, v, do, dk, dborders, *squared.tensors, mask, *plan.walk, *_strides(q, k, v, do, dk), *squared.strides,
        *plan.last, **plan.sizes, **by_d, BE=plan.be, ENDS_AT_ZERO=ends_at_zero, SQUARED=squared.used,
    )  # fmt: skip
    causal_dv[plan.grid(by_e["PIECES"])](
        q, k, do, dv, dborders, *squared.tensors, mask, *plan.walk, *_strides(q, k, do, dv), *squared.strides,
        *plan.last, **plan.sizes, **by_e, BD=plan.bd, ENDS_AT_ZERO=ends_at_zero, WRITES_START=one_part,
        SQUARED=squared.used,
    )  # fmt: skip
    return dq, dk, dv, dborders


@_backward_op.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    out: Tensor | None,
    dsquares: Tensor | None,
    dfinal: Tensor | None,
    borders: Tensor,
    mask: Tensor | None,
    carried: bool,
    causal: bool,
    phi: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    return dq, dk, torch.empty(v.shape, dtype=v.dtype, device=v.device), torch.empty_like(borders)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, mask, state, ctx.causal, ctx.phi, squared = inputs
    ctx.carried = state is not None
    ctx.save_for_backward(q, k, v, mask, output[1], output[0] if squared else None)
    ctx.set_materialize_grads(False)


def _differentiate(
    ctx: Any, do: Tensor | None, dborders: Tensor | None, dsquares: Tensor | None
) -> tuple[Tensor | None, ...]:
    q, k, v, mask, borders, out = ctx.saved_tensors
    if do is None:
        do = torch.zeros_like(v)
    dfinal = None if dborders is None else dborders[:, :, -1].contiguous()
    if dsquares is None or out is None:
        out = dsquares = None
    dq, dk, dv, dstates = _backward_op(
        q, k, v, do, out, dsquares, dfinal, borders, mask, ctx.carried, ctx.causal, ctx.phi
    )
    return dq, dk, dv, None, dstates[:, :, 0] if ctx.carried else None, None, None, None


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
    square_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The kernel behind `transnormer.ops.norm_attention`; its arguments have been checked there."""
    q, k, v = (unit_stride(in_autocast_dtype(x)) for x in (q, k, v))
    state = None if state is None else state.contiguous()
    out, borders, squares = _op(q, k, v, as_mask_bytes(mask), state, causal, PHI_CODES[feature_map], square_sums)
    return out, borders[:, :, -1], squares
