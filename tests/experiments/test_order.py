"""Whether the paper's order is ours: verdicts to reckon by hand, and laws for any numbers."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from transnormer.experiments.order import order_in_words

PAPER = {"a": 1.0, "b": 2.0, "c": 3.0}


def words(ours: dict[str, list[float]], paper: dict[str, float] | None = None) -> str:
    found = order_in_words(paper or PAPER, ours)
    assert found is not None
    return found


def test_one_seed() -> None:
    unknown = "(one seed, of unknown spread)."
    told = words({"c": [30.0], "a": [10.0], "b": [20.0]})
    assert told == f"order of the paper: a < b < c; ours: a < b < c; holds {unknown}"
    told = words({"a": [10.0], "b": [30.0], "c": [20.0]})
    assert "ours: a < c < b; does not hold: b and c the other way round" in told
    assert told.endswith(unknown)


def test_within_the_spread_of_seeds_nothing_is_decided() -> None:
    near, far = [10.0, 12.0], [20.0, 22.0]  # each deviates by the root of 2
    pair = {"a": 1.0, "b": 2.0}
    assert words({"a": near, "b": far}, pair).endswith("ours: a < b; holds.")
    assert words({"a": far, "b": near}, pair).endswith("does not hold: a and b the other way round.")
    for ours in ({"a": near, "b": [11.0, 13.0]}, {"a": [11.0, 13.0], "b": near}):
        assert words(ours, pair).endswith("not decided within the spread of seeds: a and b.")
    assert words({"a": near, "b": [13.0]}, pair).endswith("seeds: a and b."), "one seed spreads as far as others"
    assert words({"a": near, "b": [14.0]}, pair).endswith("holds.")


def test_a_reversed_pair_outweighs_an_undecided_one() -> None:
    told = words({"a": [10.0, 12.0], "b": [11.0, 12.0], "c": [1.0, 2.0]})
    assert told.endswith("does not hold: a and c, b and c the other way round.")


def test_rows_that_failed_or_did_not_run() -> None:
    assert "ours: a < b; holds" in words({"a": [1.0], "b": [math.nan]}), "no number is worse than any"
    assert "holds" in words({"a": [1.0, 2.0], "b": [math.inf, math.inf]})
    assert order_in_words(PAPER, {"a": [1.0], "b": [], "d": [3.0]}) is None
    assert order_in_words({"a": 1.0}, {"a": [1.0], "b": [2.0]}) is None


def test_rows_that_did_not_run_are_named() -> None:
    told = words({"a": [1.0], "c": [3.0]})
    assert told.endswith("order of the paper: a < c; ours: a < c; holds (one seed, of unknown spread); not run: b.")


def test_equal_numbers_are_said_to_be_equal() -> None:
    told = words({"a": [1.0], "b": [1.0], "c": [math.inf], "d": [math.nan]}, {**PAPER, "d": 3.0})
    assert "order of the paper: a < b < c = d; ours: a = b < c = d; not decided" in told


def test_what_the_paper_does_not_order_is_not_judged() -> None:
    assert "; holds" in words({"a": [2.0], "b": [1.0]}, {"a": 3.0, "b": 3.0})


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True), st.floats(0.5, 50), st.floats(-9, 9))
def test_any_rising_map_of_the_papers_numbers_holds_and_its_mirror_does_not(
    numbers: list[int], slope: float, shift: float
) -> None:
    paper = {f"row {number}": float(number) for number in numbers}
    assert "; holds" in words({row: [slope * number + shift] for row, number in paper.items()}, paper)
    assert "; does not hold" in words({row: [shift - slope * number] for row, number in paper.items()}, paper)
