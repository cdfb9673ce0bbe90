"""How a cost grows with the length: the exponent p of cost ~ T^p."""

from __future__ import annotations

import math
from collections.abc import Sequence


def exponent(lengths: Sequence[int], costs: Sequence[float]) -> float | None:
    """Slope of the least-squares line through (log T, log cost); None for fewer than two points."""
    if len(lengths) < 2:
        return None
    x, y = [math.log(length) for length in lengths], [math.log(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
