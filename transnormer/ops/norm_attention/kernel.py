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
    near_rows,
    power_of_two,
    too_large_in_float32,
)
from transnormer.ops.norm_attention.kernel_causal import (
    causal_backward,
    causal_dk,
    causal_dq,
    causal_dv,
    causal_forward,
)
from transnormer.ops.norm_attention.kernel_full import full_backward, full_forward, total_of_parts
from transnormer.ops.norm_attention.kernel_tiles import PHI_CODES, part_sums, scan_parts

MAX_HEAD_DIM = 256
_WIDEST_HEAD, _WIDEST_PIECE = 128, 64
_LONGEST_CHUNK = 128
# What the forward of wide heads takes with it, in bytes; an H100 has more, an A100 less.
_SHARED_BY_LONGEST = 200 * 1024
# Two programs on each of an H200's 132 multiprocessors: as many as it has registers for.
_AT_ONCE = 264


def why_not(*, device: str, q: Tensor | None = None, v: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, q, v, MAX_HEAD_DIM) or too_large_in_float32(q, v)


def _wanted_parts(pairs: int, width: int, causal: bool) -> int:
    """Into how many parts time is cut for so many pairs of batch and head (measured on an H200 at 8 to 512 of them).

    A causal walk over heads up to 64 is fastest with two programs on each multiprocessor, and uncut where three in four
    have one, because a cut costs another pass over k and v. Wider heads take twice as many. So do bidirectional sums,
    which are cut for nothing; the narrower their tiles, the more of them must be under way at once.
    """
    if causal:
        enough, full = (96, 256) if width <= _WIDEST_PIECE else (256, 512)
    else:
        full = 512 * max(1, _WIDEST_PIECE // width)
        enough = full // 2
    return 1 if pairs >= enough else triton.cdiv(full, pairs)


class _Plan:
    """How one call is cut into chunks, parts and programs."""

    def __init__(self, q: Tensor, v: Tensor, mask: Tensor | None, causal: bool, phi: int) -> None:
        self.batch, self.length, self.heads, self.d = q.shape
        self.e = v.shape[3]
        self.bd, self.be = power_of_two(self.d), power_of_two(self.e)
        self.wide = max(self.bd, self.be) > _WIDEST_PIECE
        self.chunk = min(64, power_of_two(self.length))
        # Both directions share the borders of the parts: a part is a whole number of either's chunks.
        longest = _LONGEST_CHUNK if causal and self.wide and _has_shared_memory(q.device) else 64
        self.forward_chunk = min(longest, power_of_two(self.length))
        chunks = triton.cdiv(self.length, self.forward_chunk)
        parts = min(chunks, _wanted_parts(self.batch * self.heads, max(self.bd, self.be), causal))
        self.part = triton.cdiv(chunks, parts) * self.forward_chunk
        self.parts = triton.cdiv(self.length, self.part)
        self.masked = mask is not None
        self.mask_stride = 0 if mask is None else mask.stride(0)
        self.sizes: dict[str, Any] = {"D": self.d, "E": self.e, "PHI": phi, "HAS_MASK": self.masked}
        self.tiles = {**self.sizes, "C": self.chunk, "BD": self.bd, "BE": self.be}
        # Three stages load a chunk during the one before it, two wait for it: 110 and 134 us backward, 64 texts of 512.
        self.tiles |= {"num_warps": 8 if self.wide else 4, "num_stages": 3}
        self.last = (self.mask_stride, self.heads, self.parts)

    def walk(self, chunk: int) -> tuple[int, int, int]:
        """What a walk in such chunks is told: the length, how many chunks that is, and how many are a part."""
        return self.length, triton.cdiv(self.length, chunk), self.part // chunk

    def whole(self, chunk: int) -> bool:
        """Whether tiles of so many rows hold real tokens only, so that nothing needs a mask."""
        return not self.masked and self.length % chunk == 0 and (self.d, self.e) == (self.bd, self.be)

    def forward_tiles(self) -> dict[str, Any]:
        """How the causal forward is compiled."""
        tiles = {**self.tiles, "C": self.forward_chunk, "WHOLE": self.whole(self.forward_chunk)}
        if self.wide:  # three stages of 128 rows would not fit
            return tiles | {"num_stages": 2}
        # With few registers a third program shares a multiprocessor; where none is left it would only slow the others.
        waiting = self.parts * self.batch * self.heads > _AT_ONCE
        return tiles | ({"maxnreg": 168} if waiting else {})

    def pieces(self, columns: int) -> dict[str, int]:
        """How the columns of a gradient of wide heads are shared out among programs."""
        piece = min(columns, _WIDEST_PIECE)
        return {"C": self.chunk, "PIECE": piece, "PIECES": columns // piece, "num_warps": 4, "num_stages": 2}

    def grid(self, pieces: int = 1) -> tuple[int, int, int]:
        return self.parts, self.batch, self.heads * pieces

    def grid_of_chunks(self) -> tuple[int, int, int]:
        return triton.cdiv(self.length, self.chunk), self.batch, self.heads

    def states(self, like: Tensor, count: int) -> Tensor:
        """Room for float32 states [B, H, count, D, E]."""
        return torch.empty((self.batch, self.heads, count, self.d, self.e), dtype=torch.float32, device=like.device)

    def squares(self, like: Tensor) -> Tensor:
        """Room for sums of squares [B, H, T]: a program writes those of its rows side by side."""
        return torch.empty((self.batch, self.heads, self.length), dtype=torch.float32, device=like.device)

    def sums(self, x: Tensor, y: Tensor, mask: Tensor | None, squared: _Squared, backward: bool) -> Tensor:
        """Σ φ(x)ᵀy over each part: [B, H, P, D, E]."""
        sums = self.states(x, self.parts)
        part_sums[self.grid()](
            x, y, sums, *squared.tensors, mask, *self.walk(self.chunk), *_strides(x, y), *squared.strides, *self.last,
            **self.tiles, SQUARED=squared.used, WHOLE=self.whole(self.chunk), REVERSED=not backward,
        )  # fmt: skip
        return sums

    def total(
        self,
        x: Tensor,
        y: Tensor,
        mask: Tensor | None,
        start: Tensor | None,
        squared: _Squared,
        other: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """start + Σ φ(x)ᵀy over the whole sequence [B, H, 1, D, E], rounded as x is, and `other` rounded likewise."""
        total = self.states(x, 1)
        rounded = torch.empty_like(total, dtype=x.dtype)
        other_rounded = None if other is None else torch.empty_like(total, dtype=x.dtype)
        size, block = self.d * self.e, 1024
        total_of_parts[(self.batch * self.heads, triton.cdiv(size, block))](
            self.sums(x, y, mask, squared, backward=other is not None), start, total, rounded, other, other_rounded,
            self.parts, size, start is not None, other is not None, block,
        )  # fmt: skip
        return total, rounded, other_rounded

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
            self.sums(x, y, mask, squared, backward), start, borders, self.parts, size, start is None, backward, block
        )
        return borders


class _Squared:
    """What a backward kernel reads when the sums of squares of the output were used: the output and their gradient."""

    def __init__(self, out: Tensor | None, dsquares: Tensor | None) -> None:
        self.used = dsquares is not None
        self.tensors = (out, dsquares)
        self.strides = (0, 0, 0) if dsquares is None else dsquares.stride()


_NOT_SQUARED = _Squared(None, None)


def _has_shared_memory(device: torch.device) -> bool:
    """Whether a program may take as much of it as the longest chunk needs; the interpreter has no limit."""
    if device.type != "cuda":
        return True
    index = torch.cuda.current_device() if device.index is None else device.index
    properties: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return properties["max_shared_mem"] >= _SHARED_BY_LONGEST


def _strides(*tensors: Tensor) -> list[int]:
    return [stride for x in tensors for stride in x.stride()[:3]]


@torch.library.custom_op("transnormer::norm_attention", mutates_args=())
def _op(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: Tensor | None, causal: bool, phi: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, states at the borders of the parts (the last is the final one), and Σ out² [B, T, H] if `squared`."""
    plan = _Plan(q, v, mask, causal, phi)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    squares = plan.squares(q) if squared else None
    if not causal:
        total, rounded, _ = plan.total(k, v, mask, state, _NOT_SQUARED)
        full_forward[plan.grid_of_chunks()](
            q, rounded, out, squares, mask, plan.length, *_strides(q, out), plan.mask_stride, plan.heads,
            **plan.tiles, SQUARED=squared, WHOLE=plan.whole(plan.chunk),
        )  # fmt: skip
        return out, total, _by_time(squares, q)
    borders = plan.borders(k, v, mask, state, _NOT_SQUARED, backward=False)
    causal_forward[plan.grid()](
        q, k, v, out, squares, borders, mask, *plan.walk(plan.forward_chunk), *_strides(q, k, v, out), *plan.last,
        **plan.forward_tiles(), STARTS_AT_ZERO=plan.parts == 1 and state is None, WRITES_END=plan.parts == 1,
        SQUARED=squared,
    )  # fmt: skip
    return out, borders, _by_time(squares, q)


def _by_time(squares: Tensor | None, like: Tensor) -> Tensor:
    """[B, H, T] -> [B, T, H]; empty where nobody asked for it, because an op returns tensors only."""
    return torch.empty(0, dtype=torch.float32, device=like.device) if squares is None else squares.mT


@_op.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: Tensor | None, causal: bool, phi: int, squared: bool
) -> tuple[Tensor, Tensor, Tensor]:
    plan = _Plan(q, v, mask, causal, phi)
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    squares = _by_time(plan.squares(q) if squared else None, q)
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
    plan = _Plan(q, v, mask, causal, phi)
    do = near_rows(do)
    squared = _Squared(out, dsquares)
    dq, dk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if not causal:
        dtotal, drounded, rounded = plan.total(q, do, mask, dfinal, squared, other=borders)
        full_backward[plan.grid_of_chunks()](
            q, k, v, do, dq, dk, dv, rounded, drounded, *squared.tensors, mask, plan.length,
            *_strides(q, k, v, do, dq, dv), *squared.strides, plan.mask_stride, plan.heads, **plan.tiles,
            SQUARED=squared.used, WHOLE=plan.whole(plan.chunk),
        )  # fmt: skip
        return dq, dk, dv, dtotal

    dborders = plan.borders(q, do, mask, dfinal, squared, backward=True)
    walk, one_part = plan.walk(plan.chunk), plan.parts == 1
    ends_at_zero = one_part and dfinal is None
    if not plan.wide:
        causal_backward[plan.grid()](
            q, k, v, do, dq, dk, dv, borders, dborders, *squared.tensors, mask, *walk,
            *_strides(q, k, v, do, dq, dv), *squared.strides, *plan.last, **plan.tiles, ENDS_AT_ZERO=ends_at_zero,
            WRITES_START=one_part, SQUARED=squared.used, WHOLE=plan.whole(plan.chunk),
        )  # fmt: skip
        return dq, dk, dv, dborders
    by_d, by_e = plan.pieces(plan.bd), plan.pieces(plan.be)
    causal_dq[plan.grid(by_d["PIECES"])](
        q, k, v, do, dq, borders, *squared.tensors, mask, *walk, *_strides(q, k, v, do, dq), *squared.strides,
        *plan.last, **plan.sizes, **by_d, BE=plan.be, STARTS_AT_ZERO=one_part and not carried, SQUARED=squared.used,
    )  # fmt: skip
    causal_dk[plan.grid(by_d["PIECES"])](
        q, k, v, do, dk, dborders, *squared.tensors, mask, *walk, *_strides(q, k, v, do, dk), *squared.strides,
        *plan.last, **plan.sizes, **by_d, BE=plan.be, ENDS_AT_ZERO=ends_at_zero, SQUARED=squared.used,
    )  # fmt: skip
    causal_dv[plan.grid(by_e["PIECES"])](
        q, k, do, dv, dborders, *squared.tensors, mask, *walk, *_strides(q, k, do, dv), *squared.strides,
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
    """The kernel behind `transnormer.ops.norm_attention`; its arguments have been checked there.

    Heads wider than 128 are computed in blocks: φ(q)φ(k)ᵀ is the sum over parts of the features, and the columns of v
    know nothing of each other.
    """
    q, k, v = (near_rows(in_autocast_dtype(x)) for x in (q, k, v))
    if max(q.shape[3], v.shape[3]) <= _WIDEST_HEAD:
        return _one_block(q, k, v, causal, feature_map, mask, state, square_sums)
    features, columns = range(0, q.shape[3], _WIDEST_HEAD), range(0, v.shape[3], _WIDEST_HEAD)
    outs, memories = [], []
    for e in columns:
        results = [
            _one_block(
                q[..., d : d + _WIDEST_HEAD],
                k[..., d : d + _WIDEST_HEAD],
                v[..., e : e + _WIDEST_HEAD],
                causal,
                feature_map,
                mask,
                None if state is None else state[:, :, d : d + _WIDEST_HEAD, e : e + _WIDEST_HEAD],
                False,
            )
            for d in features
        ]
        outs.append(torch.stack([out.float() for out, *_ in results]).sum(dim=0).to(v.dtype))
        memories.append(torch.cat([memory for _, memory, _ in results], dim=2))
    out = torch.cat(outs, dim=-1)
    squares = out.float().square().sum(dim=-1) if square_sums else _by_time(None, q)
    return out, torch.cat(memories, dim=-1), squares


def _one_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    feature_map: str,
    mask: Tensor | None,
    state: Tensor | None,
    square_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    state = None if state is None else state.contiguous()
    out, borders, squares = _op(q, k, v, as_mask_bytes(mask), state, causal, PHI_CODES[feature_map], square_sums)
    return out, borders[:, :, -1], squares
