"""Intervals of shares: between which values the true accuracy lies that gave so many right answers."""

from __future__ import annotations

import math

_Z = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Wilson's score interval (1927) of a share at 95 %: all p whose test does not reject hits of total."""
    share, shrink = hits / total, 1 + _Z**2 / total
    middle = (share + _Z**2 / (2 * total)) / shrink
    half = _Z / shrink * math.sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # at 0 and 1 it may round
