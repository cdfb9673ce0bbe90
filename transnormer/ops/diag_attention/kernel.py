"""DiagAttention in Triton: one block is one tile. q, k, v are read once, o is written once; the backward recomputes.

No log-sum-exp, no float32 dq and no second pass: forward moves 4 tensors, backward 7, which is the least possible.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from transnormer.ops.diag_attention.kernel_block import block_backward, block_forward
from transnormer.ops.kernels.launch import (
    as_mask_integers,
    cannot_launch,
    capability,
    empty_gradients,
    empty_square_sums,
    kernel_op,
    near_rows,
    power_of_two,
    too_large_in_float32,
)
from transnormer.ops.kernels.rotation import NO_ROTATION, Rotation
from transnormer.ops.kernels.shared_memory import shared_memory_bytes
from transnormer.ops.packed import PackedBounds, most_parts, sequences_in

MAX_BLOCK, MAX_HEAD_DIM = 128, 256
_HOPPER = 90


def why_not(
    *,
    device: str,
    q: Tensor | None = None,
    v: Tensor | None = None,
    mask: Tensor | None = None,
    block_size: int = 64,
    **_: Any,
) -> str | None:
    """Why this call cannot run here, or None."""
    if block_size > MAX_BLOCK:
        return f"block_size {block_size} is above {MAX_BLOCK}: a block must fit one tile"
    problem = cannot_launch(device, q, v, MAX_HEAD_DIM) or too_large_in_float32(q, v, rows=block_size)
    if problem is not None or q is None or v is None:
        return problem
    if _shared_memory_needed(q, v, mask, block_size) > shared_memory_bytes(q.device):
        masked = "" if mask is None else ", with a mask,"
        return (
            f"a block of {block_size} tokens with heads of {q.shape[-1]} and {v.shape[-1]}{masked} does not fit shared "
            "memory"
        )
    return None


def _shared_memory_needed(q: Tensor, v: Tensor, mask: Tensor | None, block_size: int) -> int:
    """What the backward takes of shared memory at most, as compiling it for several GPUs has shown."""
    d, e = power_of_two(q.shape[-1]), power_of_two(v.shape[-1])
    needed = power_of_two(block_size) * (2 * (d + e) + max(d, e)) * q.dtype.itemsize
    if mask is not None and capability(q.device) < _HOPPER:  # Triton 3.7.1 lays three more tiles there
        needed = needed * 8 // 5
    return needed


_LOG2_E = 1.4426950408889634


def _options(
    q: Tensor, v: Tensor, mask: Tensor | None, block_size: int, kind: str, causal: bool, packed: bool
) -> dict[str, Any]:
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
        "PACKED": packed,
        # Tiles that hold real tokens only need no masks.
        "UNMASKED": not packed and mask is None and block_size == tile and length % tile == 0 and (d, e) == (bd, be),
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
# A forward that rotates what it reads would spill with so few.
_ROTATING_REGISTERS = {64: 128}
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


def _grid(q: Tensor, bounds: Tensor | None, block_size: int, together: int = 1) -> tuple[int, int, int]:
    """A program for each block in so many heads; packed sequences have slots for them."""
    batch, length, heads, _ = q.shape
    programs = heads // together
    if bounds is None:
        return triton.cdiv(length, block_size), batch, programs
    return most_parts(bounds, length, block_size) * programs, 1, 1


@kernel_op("transnormer::diag_attention")
def _op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bounds: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
    squared: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and Σ out² [B, T, H] if `squared`."""
    return attended(q, k, v, mask, seeds, dropout_p, causal, block_size, kind, squared, NO_ROTATION, bounds)


def attended(
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
    rotation: Rotation,
    bounds: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `_op`, of queries and keys that may have to be rotated."""
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    squares = empty_square_sums(v, squared)
    options = _options(q, v, mask, block_size, kind, causal, bounds is not None)
    registers = _FORWARD_REGISTERS if rotation is NO_ROTATION else _ROTATING_REGISTERS
    options = _capped(options, q.dtype, seeds is not None, registers)
    heads = q.shape[2]
    together = rotation.heads_per_program(heads, math.prod(_grid(q, bounds, block_size)) // heads)
    block_forward[_grid(q, bounds, block_size, together)](
        q, k, v, out, squares, mask, bounds, sequences_in(bounds), *_dropout(seeds, dropout_p),
        *rotation.arguments(), q.shape[1], heads, together, _scales(q, kind)[0],
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        0 if mask is None else mask.stride(0), **options, **rotation.options(), SQUARED=squared,
        DROPS=seeds is not None,
    )  # fmt: skip
    return out, squares


@_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *call: Any) -> tuple[Tensor, Tensor]:
    *_, squared = call
    return torch.empty(v.shape, dtype=v.dtype, device=v.device), empty_square_sums(v, squared)


@kernel_op("transnormer::diag_attention_backward")
def _backward_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    mask: Tensor | None,
    bounds: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor]:
    gradients = empty_gradients(q, v)
    backward_into(gradients, q, k, v, do, mask, seeds, dropout_p, causal, block_size, kind, bounds)
    return gradients


def backward_into(
    gradients: tuple[Tensor, Tensor, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    mask: Tensor | None,
    seeds: Tensor | None,
    dropout_p: float,
    causal: bool,
    block_size: int,
    kind: str,
    bounds: Tensor | None = None,
) -> None:
    """Fill the gradients of q, k and v, of which the first two have the same strides."""
    dq, dk, dv = gradients
    do = near_rows(do)
    options = _options(q, v, mask, block_size, kind, causal, bounds is not None)
    block_backward[_grid(q, bounds, block_size)](
        q, k, v, do, dq, dk, dv, mask, bounds, sequences_in(bounds), *_dropout(seeds, dropout_p), q.shape[1],
        q.shape[2], *_scales(q, kind),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3], *dq.stride()[:3], *dv.stride()[:3],
        0 if mask is None else mask.stride(0),
        **_capped(options, q.dtype, seeds is not None, _BACKWARD_REGISTERS), DROPS=seeds is not None,
    )  # fmt: skip


@_backward_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_gradients(q, v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.dropout_p, ctx.causal, ctx.block_size, ctx.kind, _ = inputs
    ctx.save_for_backward(*tensors)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, do: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    if do is None:
        return (None,) * 11
    q, k, v, mask, bounds, seeds = ctx.saved_tensors
    gradients = _backward_op(q, k, v, do, mask, bounds, seeds, ctx.dropout_p, ctx.causal, ctx.block_size, ctx.kind)
    return *gradients, *(None,) * 8


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
    bounds: PackedBounds | None,
    dropout_p: float,
    square_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """The kernel behind `transnormer.ops.diag_attention`; its arguments have been checked there.

    Square sums, which have no gradient, are returned if asked for.
    """
    q, k, v = (near_rows(x) for x in (q, k, v))
    seeds = torch.randint(2**31, (2,), device=q.device) if dropout_p > 0 else None
    mask, cut = as_mask_integers(mask), None if bounds is None else bounds.cut(block_size)
    out, squares = _op(q, k, v, mask, cut, seeds, dropout_p, causal, block_size, kind, square_sums)
    return out, squares if square_sums else None
