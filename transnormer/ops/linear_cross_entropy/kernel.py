"""Cross entropy of a chunk's logits in Triton: one program a row, which is read twice and overwritten by its gradient.

The matrix products around it are cuBLAS's. The second reading walks backwards, so that it begins with what the first
one left in the cache.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.launch import cannot_launch, power_of_two
from transnormer.ops.linear_cross_entropy.chunked import make_op

_ANY_WIDTH = 2**31  # the kernel sees logits only
_MAX_LANES, _LANES_PER_WARP = 1024, 32  # of eight shapes the fastest on an H200, at 1.4 times the floor


def why_not(*, device: str, x: Tensor | None = None, weight: Tensor | None = None, **_: Any) -> str | None:
    """Why this call cannot run here, or None."""
    return cannot_launch(device, x, weight, _ANY_WIDTH)


@triton.jit
def _load(LOGITS, BIAS, column, V: tl.constexpr, COLUMNS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Logits in float32, −inf beyond the vocabulary; whole vectors are read, padding of the row included."""
    x = tl.load(LOGITS + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(BIAS + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    return tl.where(column < V, x, float("-inf"))


@triton.jit
def _score_row(
    LOGITS, BIAS, TARGETS, LOSSES, CORRECT, ignore_index,
    V: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr, BLOCKS: tl.constexpr,
    HAS_BIAS: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * COLUMNS
    target = tl.load(TARGETS + row)
    # A lane is EACH neighbouring numbers, one vector load; it has a maximum and a sum of its own until the end.
    column = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    if target == ignore_index:
        tl.store(LOSSES + row, 0.0)
        if GRADIENT:
            for block in range(BLOCKS):
                at = column + block * LANES * EACH
                tl.store(LOGITS + at, tl.zeros([LANES, EACH], LOGITS.dtype.element_ty), mask=at < COLUMNS)
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
        for block in range(BLOCKS):
            at = column + block * LANES * EACH
            x = _load(LOGITS, BIAS, at, V, COLUMNS, HAS_BIAS)
            higher = tl.maximum(top, tl.max(x, 1))
            exponentials = tl.exp2(x * LOG2_E - (higher * LOG2_E)[:, None])
            total = total * tl.exp2((top - higher) * LOG2_E) + tl.sum(exponentials, 1)
            top = higher
            if not GRADIENT:
                # As argmax does it: of equal logits the first one counts.
                before = (x > right) | ((x == right) & (at < target))
                beaten = tl.maximum(beaten, tl.max(before.to(tl.int32), 1))
        highest = tl.max(top, 0)
        total = tl.sum(total * tl.exp2((top - highest) * LOG2_E), 0)
        log_sum = highest * LOG2_E + tl.log2(total)  # base 2
        tl.store(LOSSES + row, log_sum / LOG2_E - right)

        if GRADIENT:
            for block in range(BLOCKS):
                at = column + (BLOCKS - 1 - block) * LANES * EACH
                x = _load(LOGITS, BIAS, at, V, COLUMNS, HAS_BIAS)
                softmax = tl.exp2(x * LOG2_E - log_sum)
                gradient = tl.where(at == target, softmax - 1.0, softmax)
                tl.store(LOGITS + at, gradient.to(LOGITS.dtype.element_ty), mask=at < COLUMNS)
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
    """`ScoreRows` as a kernel."""
    columns = logits.shape[1]
    each = 16 // logits.element_size()
    lanes = min(_MAX_LANES, power_of_two(triton.cdiv(columns, each)))
    _score_row[(len(logits),)](
        logits, bias, targets, losses, correct, ignore_index,
        V=vocabulary, COLUMNS=columns, LANES=lanes, EACH=each, BLOCKS=triton.cdiv(columns, lanes * each),
        HAS_BIAS=bias is not None, GRADIENT=gradient, num_warps=max(1, lanes // _LANES_PER_WARP),
    )  # fmt: skip


linear_cross_entropy = make_op("transnormer::linear_cross_entropy_triton", score_rows)
