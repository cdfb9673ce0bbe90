"""Verdicts from numbers made by hand: order, spread of seeds, data, and what is missing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_case import PUBLISHED, STAND_IN, make_record

from transnormer.experiments.order import order_in_words
from transnormer.experiments.paper.lra import TABLE
from transnormer.experiments.table import Figure, Table, score
from transnormer.report.evidence import Check, Kind, Sample, compare, order, sample, verdict

YES, NO, UNCLEAR = Check("", True), Check("", False), Check("", None)


@pytest.mark.parametrize(
    ("checks", "caveats", "kind", "words"),
    [
        ([], [], Kind.UNTESTED, "not tested"),
        ([], ["on stand-in data"], Kind.UNTESTED, "not tested"),
        ([YES, YES], [], Kind.HOLDS, "holds"),
        ([YES, YES], ["on stand-in data"], Kind.IN_PART, "holds on stand-in data"),
        ([YES], ["with one seed"], Kind.IN_PART, "holds, with reservations"),
        ([YES, NO], [], Kind.IN_PART, "holds in part"),
        ([YES, UNCLEAR], [], Kind.IN_PART, "holds in part"),
        ([NO, UNCLEAR], [], Kind.FAILS, "does not hold"),
        ([NO], ["on stand-in data"], Kind.FAILS, "does not hold on stand-in data"),
        ([UNCLEAR], [], Kind.UNTESTED, "tested, but undecided"),
        ([YES, NO], ["on several data sets"], Kind.UNTESTED, "not comparable"),
    ],
)
def test_verdicts(checks: list[Check], caveats: list[str], kind: Kind, words: str) -> None:
    found = verdict(checks, caveats)
    assert (found.kind, found.words) == (kind, words)


def test_a_caveat_of_any_comparison_is_one_of_the_verdict() -> None:
    found = verdict([YES, Check("", True, ("on stand-in data",))], ["against 2 of 3 methods"])
    assert found.caveats == ("against 2 of 3 methods", "on stand-in data")
    assert found.kind == Kind.IN_PART


@pytest.mark.parametrize(
    ("one", "other", "better", "holds"),
    [
        (Sample(3.0, 0.1), Sample(2.0, 0.1), "higher", True),
        (Sample(3.0, 0.1), Sample(2.0, 0.1), "lower", False),
        (Sample(2.15, 0.1), Sample(2.0, 0.1), "higher", None),
        (Sample(2.25, 0.1), Sample(2.0, 0.1), "higher", True),
        (Sample(math.nan, 0.1), Sample(2.0, 0.1), "higher", False),
        (Sample(2.0, 0.1), Sample(math.nan, 0.1), "lower", True),
        (Sample(math.inf, 0.1), Sample(2.0, 0.1), "lower", False),
        (Sample(2.0, 0.1), Sample(2.0, 0.1), "lower", None),
    ],
)
def test_a_difference_counts_beyond_the_spread_of_seeds(one: Sample, other: Sample, better, holds) -> None:
    found = compare("one", one, "other", other, better)
    assert found.holds is holds
    assert "with one seed" not in found.caveats


def test_of_one_seed_the_order_counts_and_is_said_to_be_so() -> None:
    found = compare("t1", Sample(2.01), "t2", Sample(2.0, 0.1), "higher")
    assert (found.text, found.holds) == ("t1 2.01 > t2 2.00 ± 0.10: within the spread of seeds", None)
    found = compare("t1", Sample(2.01), "t2", Sample(2.0), "higher")
    assert (found.text, found.holds, found.caveats) == ("t1 2.01 > t2 2.00: yes", True, ("with one seed",))


@pytest.mark.parametrize(("ours", "holds"), [(31.0, True), (31.3, True), (31.4, False)])
def test_equal_up_to_a_factor(ours: float, holds: bool) -> None:
    assert compare("t2", Sample(ours), "vanilla", Sample(31.01), "lower", within=1.011).holds is holds


def test_a_sample_has_the_mean_and_the_deviation_over_seeds() -> None:
    records = [make_record("text", "t2", seed, value) for seed, value in ((1, 0.60), (2, 0.62), (3, 0.64))]
    found = sample(TABLE, records, "t2", ["text"])
    assert found is not None
    assert (found.mean, found.deviation) == pytest.approx((62.0, 2.0))
    assert found.caveats == ()
    assert sample(TABLE, records, "t2", ["text", "image"]) is None
    records += [make_record("image", "t2", seed, value, data=STAND_IN) for seed, value in ((1, 0.4), (2, 0.44))]
    both = sample(TABLE, records, "t2", ["text", "image"])
    assert both is not None
    deviation = math.sqrt(2.0**2 + 8.0) / 2  # of the mean of two independent numbers
    assert (both.mean, both.deviation) == pytest.approx((52.0, deviation))
    assert both.caveats == ("on stand-in data",)
    changed = [make_record("text", "t2", 1, 0.6, changes={"train.steps": 3}, data={**PUBLISHED, "label": "enwiki"})]
    one = sample(TABLE, changed, "t2", ["text"])
    assert one is not None
    assert (one.deviation, one.caveats) == (None, ("on enwiki", "with changed settings"))


def three_rows(**options: Any) -> Table:
    paper = {"t2": 3.0, "t1": 2.0, "vanilla": 1.0}
    figures = {"text": Figure("text", score, paper, "higher")}
    return Table("a table", "", list(paper), list(paper), figures, TABLE.locate, **options)


def test_the_papers_order_is_tested_pair_by_pair() -> None:
    records = [make_record("text", row, accuracy=value) for row, value in (("t2", 0.5), ("t1", 0.3), ("vanilla", 0.4))]
    found = {check.text: check.holds for check in order(three_rows(), records, "text")}
    assert found == {
        "text: t2 50.00 > t1 30.00: yes": True,
        "text: t2 50.00 > vanilla 40.00: yes": True,
        "text: t1 30.00 > vanilla 40.00: no": False,
    }
    assert len(order(three_rows(), records[:2], "text")) == 1
    (pair,) = order(three_rows(groups=[["t2", "vanilla"], ["t1"]]), records, "text")
    assert pair.text == "text: t2 50.00 > vanilla 40.00: yes"


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=3), min_size=3, max_size=3))
def test_a_page_and_the_site_judge_an_order_alike(values: list[list[int]]) -> None:
    """Also where some rows have several seeds and others one, which then counts with the largest deviation."""
    paper = {"t1": 1.0, "t2": 2.0, "vanilla": 3.0}
    table = Table("", "", list(paper), list(paper), {"text": Figure("text", score, paper, "lower")}, TABLE.locate)
    ours = {row: [value / 100 for value in found] for row, found in zip(paper, values, strict=True)}
    records = [make_record("text", row, seed, each) for row, found in ours.items() for seed, each in enumerate(found)]
    words = order_in_words(paper, {row: table.numbers(records, row, "text") for row in paper})
    found = [check.holds for check in order(table, records, "text")]
    assert words is not None
    assert ("; holds" in words) == (found == [True] * 3)
    assert ("; does not hold" in words) == (False in found)


def test_an_order_over_two_data_sets_is_none() -> None:
    """Also where two rows had the same data, or where it is one row whose seeds had different ones."""
    records = [make_record("text", "t2", accuracy=0.5), make_record("text", "t1", accuracy=0.3)]
    records.append(make_record("text", "t1", 7, accuracy=0.3, data={**PUBLISHED, "digest": "1"}))
    (check,) = order(three_rows(), records, "text")
    assert check.text == "text: records of 2 data sets, which must not be compared"
    assert verdict([check]).words == "not comparable"
    assert order(three_rows(), records[1:], "text") == []
