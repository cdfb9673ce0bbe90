"""Wilson's interval against its definition: the shares that a two-sided score test at 5 % does not reject."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transnormer.experiments.interval import wilson


def rejects(share: float, hits: int, total: int) -> bool:
    """The score test, whose deviation is that of the share in question and not of the one observed."""
    deviation = math.sqrt(share * (1 - share) / total)
    return abs(hits / total - share) > NormalDist().inv_cdf(0.975) * deviation


def bisected(inside: float, outside: float, hits: int, total: int) -> float:
    for _ in range(100):
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejects(middle, hits, total) else (middle, outside)
    return inside


@given(st.data(), st.integers(1, 30_000))
def test_it_holds_what_the_score_test_does_not_reject(data: st.DataObject, total: int) -> None:
    hits = data.draw(st.integers(0, total))
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total <= high <= 1
    assert low == pytest.approx(bisected(hits / total, 0.0, hits, total), abs=1e-9)
    assert high == pytest.approx(bisected(hits / total, 1.0, hits, total), abs=1e-9)


def test_a_published_example() -> None:
    """Newcombe 1998, table I, method 3: 81 of 263."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
