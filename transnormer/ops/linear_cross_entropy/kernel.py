"""Cross entropy of a chunk's logits in Triton: one program a row, which is read twice and overwritten by its gradient.

The matrix products around it are cuBLAS's. The second reading scans from the end, so that it begins with what the first
one left in the cache.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.launch import ANY_WIDTH, cannot_launch, power_of_two
from transnormer.ops.linear_cross_entropy.chunked import make_op

_MAX_LANES, _LANES_PER_WARP = 1024, 32  # of eight shapes the fastest on an H200, at 1.4 times the floor


def why_not(*, device: str, x: Tensor | None = None, weight: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, x, weight, ANY_WIDTH)  # the kernel sees logits only


@triton.jit
def _load(LOGITS, BIAS, column, V: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr, INSIDE: tl.constexpr):
    """Logits in float32, −inf beyond the vocabulary; a block that lies `INSIDE` of it needs no masks."""
    if INSIDE:
        x = tl.load(LOGITS + column).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(BIAS + column).to(tl.float32)
        return x
    x = tl.load(LOGITS + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(BIAS + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    return tl.where(column < V, x, float("-inf"))


@triton.jit
def _add_block(x, column, top, total, beaten, target, right, COUNT: tl.constexpr):
    """Take a block into each lane's maximum and sum of exponentials, and note where the target is beaten."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    higher = tl.maximum(top, tl.max(x, 1))
    exponentials = tl.exp2(x * LOG2_E - (higher * LOG2_E)[:, None])
    total = total * tl.exp2((top - higher) * LOG2_E) + tl.sum(exponentials, 1)
    if COUNT:
        # As argmax does it: of equal logits the first one counts.
        before = (x > right) | ((x == right) & (column < target))
        beaten = tl.maximum(beaten, tl.max(before.to(tl.int32), 1))
    return higher, total, beaten


@triton.jit
def _gradient(x, column, target, log_sum):
    """softmax − onehot."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    softmax = tl.exp2(x * LOG2_E - log_sum)
    return tl.where(column == target, softmax - 1.0, softmax)


@triton.jit
def _score_row(
    LOGITS, BIAS, TARGETS, LOSSES, CORRECT, ignore_index,
    V: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
    HAS_BIAS: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    BLOCK: tl.constexpr = LANES * EACH
    INSIDE: tl.constexpr = V // BLOCK  # blocks without padding; the rest, if there is any, is one block more
    REST: tl.constexpr = COLUMNS > INSIDE * BLOCK
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * COLUMNS
    target = tl.load(TARGETS + row)
    # A lane is EACH neighbouring numbers, one vector load; it has a maximum and a sum of its own until the end.
    column = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    last = column + INSIDE * BLOCK
    if target == ignore_index:
        tl.store(LOSSES + row, 0.0)
        if GRADIENT:
            zeros = tl.zeros([LANES, EACH], LOGITS.dtype.element_ty)
            for block in range(INSIDE):
                tl.store(LOGITS + column + block * BLOCK, zeros)
            if REST:
                tl.store(LOGITS + last, zeros, mask=last < COLUMNS)
        else:
            tl.store(CORRECT + row, 0)
    else:
        # A target that is no class gives NaN, which stops a run, instead of a number from another row.
        known = (target >= 0) & (target < V)
        right = tl.load(LOGITS + target, mask=known, other=float("nan")).to(tl.float32)
        if HAS_BIAS:
            right += tl.load(BIAS + target, mask=known, other=0.0).to(tl.float32)

        # Finite, so that a lane that has seen nothing but −inf does not subtract it from itself.
        top = tl.full([LANES], -1.0e38, tl.float32)
        total = tl.zeros([LANES], tl.float32)
        beaten = tl.zeros([LANES], tl.int32)
        for block in range(INSIDE):
            at = column + block * BLOCK
            x = _load(LOGITS, BIAS, at, V, COLUMNS, HAS_BIAS, True)
            top, total, beaten = _add_block(x, at, top, total, beaten, target, right, not GRADIENT)
        if REST:
            x = _load(LOGITS, BIAS, last, V, COLUMNS, HAS_BIAS, False)
            top, total, beaten = _add_block(x, last, top, total, beaten, target, right, not GRADIENT)
        highest = tl.max(top, 0)
        total = tl.sum(total * tl.exp2((top - highest) * LOG2_E), 0)
        log_sum = highest * LOG2_E + tl.log2(total)  # base 2
        tl.store(LOSSES + row, log_sum / LOG2_E - right)

        if GRADIENT:
            if REST:
                x = _load(LOGITS, BIAS, last, V, COLUMNS, HAS_BIAS, False)
                gradient = _gradient(x, last, target, log_sum).to(LOGITS.dtype.element_ty)
                tl.store(LOGITS + last, gradient, mask=last < COLUMNS)
            for block in range(INSIDE):
                at = column + (INSIDE - 1 - block) * BLOCK
                x = _load(LOGITS, BIAS, at, V, COLUMNS, HAS_BIAS, True)
                tl.store(LOGITS + at, _gradient(x, at, target, log_sum).to(LOGITS.dtype.element_ty))
        else:
            tl.store(CORRECT + row, 1 - tl.max(beaten, 0))


def score_rows(
    logits: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    losses: Tensor,
    correct: Tensor,
    ignore_index: int,
    vocabulary: int,
    gradient: bool,
) -> None:
    """As `chunked.score_rows`, by the kernel."""
    columns = logits.shape[1]
    each = 16 // logits.element_size()
    lanes = min(_MAX_LANES, power_of_two(triton.cdiv(columns, each)))
    _score_row[(len(logits),)](
        logits, bias, targets, losses, correct, ignore_index,
        V=vocabulary, COLUMNS=columns, LANES=lanes, EACH=each,
        HAS_BIAS=bias is not None, GRADIENT=gradient, num_warps=max(1, lanes // _LANES_PER_WARP),
    )  # fmt: skip


linear_cross_entropy = make_op("transnormer::linear_cross_entropy_triton", score_rows)
