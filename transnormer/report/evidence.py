"""What records say about a claim: numbers with their spread over seeds, comparisons of them, and a verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Literal

from transnormer.experiments.record import Data, Record
from transnormer.experiments.table import Records, Table

Better = Literal["higher", "lower"]

ON_STAND_IN = "on stand-in data"
ON_SEVERAL_DATA_SETS = "on several data sets"
NOT_ON_EQUAL_TERMS = "not on equal terms"
_SIGN = {"higher": ">", "lower": "<"}


class Kind(StrEnum):
    """Of a verdict, as a page colours it."""

    HOLDS = "holds"
    IN_PART = "in-part"
    FAILS = "fails"
    UNTESTED = "untested"


@dataclass(frozen=True)
class Verdict:
    """What became of a claim, in words, and what is to be said before anybody relies on it."""

    kind: Kind
    words: str
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """A number of ours: the mean over seeds, their standard deviation (None of one alone), and what qualifies it."""

    mean: float
    deviation: float | None = None
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One comparison: whether it came out as claimed, or None where it cannot be said."""

    text: str
    holds: bool | None
    caveats: tuple[str, ...] = ()


def sample(table: Table, records: Records, row: str, headings: Sequence[str]) -> Sample | None:
    """The mean of a row's figures; None where one has not run."""
    means, found = [], []
    for heading in headings:
        figure = table.figures[heading]
        there = table.of(records, row, figure.column)
        numbers = [value for value in map(figure.value, there) if value is not None]
        if not numbers or len(numbers) < len(there):
            return None
        means.append(statistics.fmean(numbers))
        found += there
    return Sample(statistics.fmean(means), table.deviation(records, row, headings), tuple(_caveats(found)))


def largest_deviation(samples: Iterable[Sample | None]) -> float:
    """Over seeds, of those that have several: what a sample of one seed beside them counts with."""
    return max((each.deviation for each in samples if each and each.deviation is not None), default=0.0)


def compare(
    name: str,
    one: Sample,
    other_name: str,
    other: Sample,
    better: Better,
    within: float = 1.0,
    unknown: float = 0.0,
) -> Check:
    """Whether one is better than the other by more than their standard deviations over seeds together.

    `within` is a factor by which it may be worse and still count as equal. `unknown` is the deviation of a sample of
    one seed, which a caveat speaks of; what is no number (a run that diverged) is worse than any number.
    """
    caveats = tuple(dict.fromkeys([*one.caveats, *other.caveats]))
    if None in (one.deviation, other.deviation):
        caveats = ("with one seed", *caveats)
    text = f"{name} {_text(one)} {_SIGN[better]} {other_name} {_text(other)}"
    worst = -math.inf if better == "higher" else math.inf
    first, second = (worst if math.isnan(each.mean) else each.mean for each in (one, other))
    if first == second:
        return Check(f"{text}: equal", within > 1 or None, caveats)
    allowed = second / within if better == "higher" else second * within
    gain = first - allowed if better == "higher" else allowed - first
    spread = sum(unknown if each.deviation is None else each.deviation for each in (one, other))
    if within > 1:
        text += f" × {within:.3f}"
    if abs(gain) <= spread:
        return Check(f"{text}: within the spread of seeds", None, caveats)
    return Check(f"{text}: {'yes' if gain > 0 else 'no'}", gain > 0, caveats)


def order(table: Table, records: Records, heading: str) -> list[Check]:
    """Every pair of rows that the paper compares and tells apart under a heading: does ours have the same order?"""
    figure, checks = table.figures[heading], []
    if figure.better is None:
        return []
    groups = [[row for row in group if row in figure.paper] for group in table.groups or [table.rows]]
    for group in groups:
        ours = {row: sample(table, records, row, [heading]) for row in group}
        unknown = largest_deviation(ours.values())
        for pair in combinations(group, 2):
            first, second = sorted(pair, key=figure.paper.__getitem__, reverse=figure.better == "higher")
            one, other = ours[first], ours[second]
            if one and other and figure.paper[first] != figure.paper[second]:
                check = compare(first, one, second, other, figure.better, unknown=unknown)
                checks.append(Check(f"{heading}: {check.text}", check.holds, check.caveats))
    return of_one_data_set(table, records, [heading], checks)


def of_one_data_set(table: Table, records: Records, headings: Sequence[str], checks: list[Check]) -> list[Check]:
    """The comparisons under some headings, or what forbids them all: columns with records of several data sets."""
    columns = dict.fromkeys(table.figures[heading].column for heading in headings)
    mixed = {column: count for column in columns if (count := len(table.data_sets(records, column))) > 1}
    forbidden = [
        Check(f"{column}: records of {count} data sets, which must not be compared", None, (ON_SEVERAL_DATA_SETS,))
        for column, count in mixed.items()
    ]
    return (forbidden or checks) if checks else []


def verdict(checks: Sequence[Check], caveats: Iterable[str] = ()) -> Verdict:
    """What all comparisons together say; only what holds without any caveat holds."""
    decided = [check.holds for check in checks if check.holds is not None]
    if not checks:
        return Verdict(Kind.UNTESTED, "not tested")
    said = tuple(dict.fromkeys([*caveats, *(caveat for check in checks for caveat in check.caveats)]))
    if ON_SEVERAL_DATA_SETS in said:
        return Verdict(Kind.UNTESTED, "not comparable", said)
    if not decided:
        return Verdict(Kind.UNTESTED, "tested, but undecided", said)
    if not any(decided):
        return Verdict(Kind.FAILS, f"does not hold{_on(said)}", said)
    grave = _on(said) + (f", {NOT_ON_EQUAL_TERMS}" if NOT_ON_EQUAL_TERMS in said else "")
    if not all(decided) or len(decided) < len(checks):
        return Verdict(Kind.IN_PART, f"holds in part{grave}", said)
    if said:
        return Verdict(Kind.IN_PART, f"holds{grave or ', with reservations'}", said)
    return Verdict(Kind.HOLDS, "holds")


def _on(caveats: Sequence[str]) -> str:
    return f" {ON_STAND_IN}" if ON_STAND_IN in caveats else ""


def _text(one: Sample) -> str:
    return f"{one.mean:,.2f}" + (f" ± {one.deviation:.2f}" if one.deviation is not None else "")


def _caveats(records: Sequence[Record]) -> Iterable[str]:
    for label in dict.fromkeys(record.data.label for record in records if not record.data.is_papers):
        yield ON_STAND_IN if label == Data.STAND_IN else f"on {label}"
    if any(record.changes for record in records):
        yield "with changed settings"
