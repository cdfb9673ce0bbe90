"""The shapes at which ops are timed on a GPU, the least time that memory allows there, and the goals set from it."""

from __future__ import annotations

import math
from typing import NamedTuple

from transnormer.bench.cases import FULL_SOFTMAX, PACKED, PACKED_CASES


class Shape(NamedTuple):
    """q, k and v are [batch, length, heads, head_dim] in bfloat16."""

    batch: int
    length: int
    heads: int
    head_dim: int

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one of the tensors."""
        return 2 * math.prod(self)


SHAPES = {
    "LM 64x512": Shape(64, 512, 8, 64),
    "LM 16x2048": Shape(16, 2048, 8, 64),
    "LM 4x8192": Shape(4, 8192, 8, 64),
    "LM 1x32768": Shape(1, 32768, 8, 64),
    "LLM 4x8192": Shape(4, 8192, 16, 128),
    "LRA 16x1024": Shape(16, 1024, 2, 32),
    "LRA 16x4096": Shape(16, 4096, 2, 32),
}
PASSES = ("forward", "forward_backward")
# Forward reads q, k, v and writes o; backward reads q, k, v, do and writes dq, dk, dv. Nothing less is possible.
_TENSORS_MOVED = {"forward": 4, "forward_backward": 11}
# A launch is not bandwidth: on the small shapes of LRA the goal is a floor plus microseconds.
_LRA_ALLOWANCE = {"forward": 3.0, "forward_backward": 8.0}


def floor_microseconds(shape: str, bandwidth: float) -> dict[str, float]:
    """The time in which each pass could move its tensors once at `bandwidth` bytes a second."""
    return {each: count * SHAPES[shape].tensor_bytes / bandwidth * 1e6 for each, count in _TENSORS_MOVED.items()}


def goal_microseconds(case: str, shape: str, floor: dict[str, float]) -> dict[str, float] | None:
    """Microseconds that a kernel of ours should need; None for what is not ours."""
    if case == FULL_SOFTMAX:
        return None
    if case in PACKED_CASES:  # nine tenths of the tokens a second of rows that lie apart
        apart = goal_microseconds(case.removesuffix(PACKED), shape, floor)
        return None if apart is None else {each: goal / 0.9 for each, goal in apart.items()}
    if shape.startswith("LRA"):
        return {each: floor[each] + _LRA_ALLOWANCE[each] for each in PASSES}
    return {each: floor[each] * multiple for each, multiple in zip(PASSES, _goal_multiples(case, shape), strict=True)}


def _goal_multiples(case: str, shape: str) -> tuple[float, float]:
    if case == "norm causal":
        if SHAPES[shape].head_dim == 128:
            return 1.2, 1.35
        return {8192: (1.3, 1.4), 32768: (1.5, 1.7)}.get(SHAPES[shape].length, (1.2, 1.25))
    if case == "norm full":
        return 1.15, 1.3
    return (1.15, 1.2) if "softmax" in case else (1.2, 1.25)
