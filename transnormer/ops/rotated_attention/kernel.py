"""Rotation and attention of packed QKV, from the kernels of `rotate`, `norm_attention` and `diag_attention`.

The attention's backward writes the gradient of the values, and the rotation's those of queries and keys, into one
tensor. Queries and keys are rotated again in the backward where they are large. Where nothing rotated is kept, the
attention rotates what it reads, and it never lies in memory; but a causal NormAttention has enough to do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transnormer.ops.diag_attention import kernel as diag
from transnormer.ops.kernels.feature_maps import PHI_CODES
from transnormer.ops.kernels.launch import as_mask_integers, empty_square_sums, kernel_op, near_rows
from transnormer.ops.kernels.rotation import NO_ROTATION, Rotation
from transnormer.ops.norm_attention import kernel as norm
from transnormer.ops.norm_attention.kernel_plan import Plan
from transnormer.ops.packed import PackedBounds
from transnormer.ops.rotate import kernel as rotate

_IDENTITY = PHI_CODES["identity"]  # the rotation has applied φ
# Bytes of q from which the backward rotates q and k again instead of keeping them: the projection is kept for v anyway,
# so the rotated ones are two fifths of all that an attention keeps. The paper's language model at 65,536 tokens (64
# MiB) keeps them: 0.75 GiB, for about one percent of a step (an H200; from the forward's 63 us of memory traffic).
_WORTH_RECOMPUTING = 128 * 2**20
# Columns of heads that the attention itself rotates, by the bytes of a number: on an H200 that takes 0.46 to 0.87 of
# the time of a rotation and an attention (heads of 16 to 128 columns, bfloat16). In float32 wider ones would spill.
_WIDEST_ROTATED_ON_LOAD = {2: 128, 4: 32}


def why_not(
    *, device: str, kind: str = "norm", q: Tensor | None = None, v: Tensor | None = None, **call: Any
) -> str | None:
    """Why this call cannot run here, or None."""
    if q is not None and q.shape[3] > norm.WIDEST_HEAD:
        return f"head size {q.shape[3]} is above {norm.WIDEST_HEAD}"
    attention = norm if kind == "norm" else diag
    return rotate.why_not(device=device, q=q) or attention.why_not(device=device, q=q, v=v, **call)


@kernel_op("transnormer::rotated_attention")
def _op(
    qkv: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    reflection: Tensor | None,
    mask: Tensor | None,
    bounds: Tensor | None,
    seeds: Tensor | None,
    kind: str,
    causal: bool,
    phi: int,
    block_size: int,
    dropout_p: float,
    keeps: bool,
    squared: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output, and Σ out² if `squared`. For the backward: states of NormAttention; q and k rotated, if `keeps`."""
    q, k, v = qkv.unbind(dim=2)
    rotation = Rotation(positions, inverse_frequencies, reflection)
    if keeps or not _rotates_on_load(q, kind, causal):
        q, k = rotate._op(q, k, positions, inverse_frequencies, reflection, phi)
        phi, rotation = _IDENTITY, NO_ROTATION
    if kind == "norm":
        out, boundaries, squares = norm.attended(q, k, v, mask, None, causal, phi, squared, rotation, bounds)
    else:
        options = (dropout_p, causal, block_size, kind, squared, rotation, bounds)
        out, squares = diag.attended(q, k, v, mask, seeds, *options)
        boundaries = _nothing(out)
    return (out, squares, boundaries, q, k) if keeps else (out, squares, boundaries, _nothing(q), _nothing(q))


def _nothing(like: Tensor) -> Tensor:
    """Where an op must return a tensor and has none."""
    return torch.empty(0, dtype=like.dtype, device=like.device)


def _rotates_on_load(q: Tensor, kind: str, causal: bool) -> bool:
    """Whether the attention has registers left for cosines and sines."""
    return q.shape[3] <= _WIDEST_ROTATED_ON_LOAD[q.element_size()] and not (kind == "norm" and causal)


@_op.register_fake
def _(qkv: Tensor, *call: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, mask, bounds, _seeds, kind, causal, phi, _block_size, _dropout_p, keeps, squared = call
    q = qkv[:, :, 0]
    out, squares = torch.empty(q.shape, dtype=q.dtype, device=q.device), empty_square_sums(q, squared)
    boundaries = _nothing(out)
    if kind == "norm":
        plan = Plan(q, q, mask, causal, phi, bounds)
        boundaries = plan.empty_borders(q) if causal else plan.empty_totals(q)
    if not keeps:
        return out, squares, boundaries, _nothing(q), _nothing(q)
    return out, squares, boundaries, torch.empty_like(out), torch.empty_like(out)


@kernel_op("transnormer::rotated_attention_backward")
def _backward_op(
    qkv: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    reflection: Tensor | None,
    mask: Tensor | None,
    bounds: Tensor | None,
    seeds: Tensor | None,
    boundaries: Tensor,
    yq: Tensor,
    yk: Tensor,
    do: Tensor,
    kind: str,
    causal: bool,
    phi: int,
    block_size: int,
    dropout_p: float,
    keeps: bool,
    learned: bool,
) -> tuple[Tensor, Tensor]:
    """dqkv, and dfrequencies as float32 [D/2] (zeros unless `learned`)."""
    q, k, v = qkv.unbind(dim=2)
    if not keeps:
        yq, yk = rotate._op(q, k, positions, inverse_frequencies, reflection, phi)
    dqkv = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    dq, dk, dv = dqkv.unbind(dim=2)
    dyq, dyk = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(2))
    if kind == "norm":
        call = (boundaries, mask, False, causal, _IDENTITY, bounds)
        norm.backward_into((dyq, dyk, dv), yq, yk, v, do, None, *call)
    else:
        options = (dropout_p, causal, block_size, kind, bounds)
        diag.backward_into((dyq, dyk, dv), yq, yk, v, do, mask, seeds, *options)
    if phi == _IDENTITY:  # then the rotation's backward wants what the forward returned
        q, k = yq, yk
    dfrequencies = rotate.backward_into(
        (dq, dk), q, k, dyq, dyk, positions, inverse_frequencies, reflection, phi, learned
    )
    return dqkv, dfrequencies


@_backward_op.register_fake
def _(qkv: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dfrequencies = torch.empty(qkv.shape[4] // 2, dtype=torch.float32, device=qkv.device)
    return torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device), dfrequencies


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, kind, causal, phi, block_size, dropout_p, keeps, _squared = inputs
    ctx.call = (kind, causal, phi, block_size, dropout_p, keeps)
    ctx.mark_non_differentiable(*output[1:])
    # Otherwise the backward pass gets zeros for what is not differentiable.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[2:])


def _differentiate(ctx: Any, do: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if do is None:
        return (None,) * 14
    learned = ctx.needs_input_grad[2]
    dqkv, dfrequencies = _backward_op(*ctx.saved_tensors, do, *ctx.call, learned)
    return dqkv, None, dfrequencies if learned else None, *(None,) * 11


_op.register_autograd(_differentiate, setup_context=_save)


def rotated_attention(
    qkv: Tensor,
    positions: Tensor,
    inverse_frequencies: Tensor,
    *,
    kind: str,
    causal: bool,
    feature_map: str,
    reflection: Tensor | None,
    mask: Tensor | None,
    bounds: PackedBounds | None,
    block_size: int,
    dropout_p: float,
    square_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """The kernels behind `transnormer.ops.rotated_attention`; the arguments have been checked there."""
    qkv = near_rows(qkv)
    cut = None
    if bounds is not None:
        q, _, v = qkv.unbind(dim=2)
        cut = norm.bounds_of(q, v, causal, bounds) if kind == "norm" else bounds.cut(block_size)
    reflection = None if reflection is None else reflection.float().contiguous()
    seeds = torch.randint(2**31, (2,), device=qkv.device) if dropout_p > 0 else None
    size = qkv.numel() * qkv.element_size()  # `nbytes` is no symbol to a compiler
    keeps = torch.is_grad_enabled() and size < 3 * _WORTH_RECOMPUTING
    out, sums, *_ = _op(
        qkv,
        positions,
        inverse_frequencies.float().contiguous(),
        reflection,
        as_mask_integers(mask),
        cut,
        seeds,
        kind,
        causal,
        PHI_CODES[feature_map],
        block_size,
        dropout_p,
        keeps,
        square_sums,
    )
    return out, sums if square_sums else None
