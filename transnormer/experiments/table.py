"""A table: figures of records in rows beside the paper's numbers, with marks for what cannot be compared."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transnormer.experiments.record import Data, Record
from transnormer.markdown import markdown_table

NONE = "–"
NOT_IN_PAPER = "not in the paper"
STAND_IN, CHANGED, RESUMED, OLDER = "†", "‡", "§", "°"

Records = Sequence[Record]


@dataclass(frozen=True)
class Figure:
    """A number of each record of a column's jobs, and the paper's by row where it has one.

    With `relative_to` all are divided by those of that row, ours by ours and the paper's by the paper's. What is
    neither better nor worse (`better` is None) is no result: it has no best, no spread over seeds and no marks, and
    is the mean of those records that have it.
    """

    column: str
    value: Callable[[Record], float | None]
    paper: Mapping[str, float] = field(default_factory=dict)
    better: Literal["higher", "lower"] | None = None
    digits: int = 2
    relative_to: str | None = None
    # Where the true number of a record lies; then all that the best's interval cannot be told from is bold with it.
    interval: Callable[[Record], tuple[float, float] | None] | None = None

    def papers(self, row: str) -> float | None:
        """The paper's number of a row."""
        return self._relative(self.paper.get(row), self.paper.get(self.relative_to or ""))

    def ours(self, records: Records, reference: Records) -> list[float | None]:
        """The number of each record of a row; `reference` are those of the row `relative_to`."""
        divisor = mean(list(map(self.value, reference)))
        return [self._relative(self.value(record), divisor) for record in records]

    def text(self, value: float | None) -> str:
        """A number, or a dash for none."""
        return NONE if value is None else f"{value:,.{self.digits}f}"

    def _relative(self, value: float | None, divisor: float | None) -> float | None:
        if self.relative_to is None:
            return value
        return value / divisor if value is not None and divisor else None


@dataclass(frozen=True)
class Table:
    """Rows down; for each figure, by its heading, ours and the paper's, then means over some figures.

    `locate` says of which row and column a record is, if of any. `rows` has the order; those that are `in_paper` are
    shown wherever it has figures of them, all others once they ran.
    """

    title: str
    caption: str  # what the figures are, and whose they stand beside
    rows: Sequence[str]
    in_paper: Collection[str]
    figures: Mapping[str, Figure]
    locate: Callable[[Record], tuple[str, str] | None]
    # What jobs of a row, column and seed differ in: those that score best, as a mean over seeds, are shown alone.
    variant: Callable[[Record], Any] | None = None
    means: Callable[[Records], Mapping[str, Sequence[str]]] = lambda _: {}
    notes: Callable[[Records], Sequence[str]] = lambda _: ()  # below it, after what its marks mean
    groups: Sequence[Sequence[str]] = ()  # rows that the paper compares with each other; all, where none are named
    row_is: str = "method"

    def markdown(self, records: Records) -> str:
        """The best of ours under each heading is bold; a row that the paper does not have is said to be so.

        Of a figure that has intervals, a single run is shown with its own.
        """
        rows, means = self.shown_rows(records), self.means(records)
        headings = [self.row_is]
        columns = [[row if row in self.in_paper else f"{row} ({NOT_IN_PAPER})" for row in rows]]
        for heading, figure in self.figures.items():
            headings.append(heading)
            figures = self.shown_figures(records, rows, heading)
            columns.append([f"**{text}**" if is_best else text for text, is_best in figures])
            if figure.paper:
                headings.append("paper")
                columns.append([figure.text(figure.papers(row)) for row in rows])
        for heading, averaged in means.items():
            papers = [mean([self.figures[each].papers(row) for each in averaged]) for row in rows]
            headings += [heading, "paper"]
            shown = [NONE if value is None else f"{value:.2f}" for value in papers]
            columns += [[self.mean(records, row, averaged) for row in rows], shown]
        return markdown_table(headings, list(zip(*columns, strict=True)))

    @property
    def columns(self) -> list[str]:
        """Whose jobs it shows."""
        return list(dict.fromkeys(figure.column for figure in self.figures.values()))

    def shown_rows(self, records: Records) -> list[str]:
        """In order: those that the paper has figures of, and those that ran."""
        ran = self.rows_that_ran(records)
        in_paper = {row for figure in self.figures.values() for row in figure.paper}
        return list(dict.fromkeys([*(row for row in self.rows if row in in_paper or row in ran), *ran]))

    def rows_that_ran(self, records: Records) -> list[str]:
        """In the order of the records."""
        located = (self.locate(record) for record in records)
        return list(dict.fromkeys(at[0] for at in located if at and at[1] in self.columns))

    def of(self, records: Records, row: str | None, column: str) -> list[Record]:
        """The records, one for each seed, in a row (None: in any) and column."""
        located = [(record, self.locate(record)) for record in records]
        rows: dict[str, list[Record]] = {}
        for record, at in located:
            if at and at[1] == column and row in (None, at[0]):
                rows.setdefault(at[0], []).append(record)
        return [record for found in rows.values() for record in self._best_variant(found)]

    def data_sets(self, records: Records, column: str) -> dict[str, list[str]]:
        """What was trained on in a column, and which rows were."""
        found: dict[str, dict[str, None]] = {}
        for row in self.rows_that_ran(records):
            for record in self.of(records, row, column):
                found.setdefault(f"{record.data.label}, {record.data.digest[:12]}", {})[row] = None
        return {data: list(rows) for data, rows in found.items()}

    def is_comparable(self, records: Records, column: str) -> bool:
        """Whether all that ran in a column was trained on the same data."""
        return len(self.data_sets(records, column)) < 2

    def _best_variant(self, records: Records) -> Records:
        if self.variant is None:
            return records
        variants: dict[Any, list[Record]] = {}
        for record in records:
            variants.setdefault(self.variant(record), []).append(record)
        sign = 1 if records[0].higher_is_better else -1
        return max(variants.values(), key=lambda found: sign * statistics.fmean(record.score for record in found))

    def value(self, records: Records, row: str, heading: str) -> float | None:
        """The mean over seeds."""
        values = self._values(records, row, heading)
        return mean(values if self.figures[heading].better else _numbers(values))

    def best(self, records: Records, heading: str) -> float | None:
        """The best mean under a heading; None where nothing ran, where none is better, or where they had other data."""
        figure = self.figures[heading]
        if figure.better is None or not self.is_comparable(records, figure.column):
            return None
        values = [self.value(records, row, heading) for row in self.shown_rows(records)]
        return (max if figure.better == "higher" else min)(_numbers(values), default=None)

    def text(self, records: Records, row: str, heading: str) -> str:
        """The mean over seeds, its deviation where there are several, and marks for what makes it incomparable."""
        figure, found = self.figures[heading], self.of(records, row, self.figures[heading].column)
        text = figure.text(self.value(records, row, heading))
        if figure.better is None or text == NONE:
            return text
        if (deviation := self.deviation(records, row, [heading])) is not None:
            text += f" ± {figure.text(deviation)}"
        # A ratio of two models on the same data says something beyond them.
        marks = _marks(found, CHANGED if figure.relative_to else STAND_IN + CHANGED)
        is_older = any(record.is_older for record in found) and not all(record.is_older for record in records)
        return text + marks + (OLDER if is_older else "")

    def mean(self, records: Records, row: str, headings: Sequence[str]) -> str:
        """The mean of a row over figures, its deviation over seeds, and the marks of all that is in it."""
        average = mean([self.value(records, row, heading) for heading in headings])
        if average is None:
            return NONE
        deviation = self.deviation(records, row, headings)
        spread = "" if deviation is None else f" ± {deviation:.2f}"
        found = [record for each in headings for record in self.of(records, row, self.figures[each].column)]
        return f"{average:.2f}{spread}{_marks(found)}"

    def deviation(self, records: Records, row: str, headings: Sequence[str]) -> float | None:
        """Over seeds, of the mean of a row over figures, taken as independent; None where one has no two seeds."""
        values = [self._values(records, row, heading) for heading in headings]
        finite = [[each for each in found if each is not None and math.isfinite(each)] for found in values]
        if any(len(some) < max(2, len(found)) for some, found in zip(finite, values, strict=True)):
            return None
        return math.sqrt(sum(map(statistics.variance, finite))) / len(headings)

    def numbers(self, records: Records, row: str, heading: str) -> list[float]:
        """One for each seed that has one."""
        return [value for value in self._values(records, row, heading) if value is not None]

    def _values(self, records: Records, row: str, heading: str) -> list[float | None]:
        figure = self.figures[heading]
        reference = self.of(records, figure.relative_to, figure.column) if figure.relative_to else []
        return figure.ours(self.of(records, row, figure.column), reference)

    def shown_figures(self, records: Records, rows: Sequence[str], heading: str) -> list[tuple[str, bool]]:
        """Of each row the text that stands under a heading, and whether it is the best or cannot be told from it."""
        values = [self.value(records, row, heading) for row in rows]
        texts = [self._with_interval(records, row, heading) for row in rows]
        best = self.best(records, heading)
        if best is None:
            return [(text, False) for text in texts]
        spreads = [self.spread(records, row, heading) for row in rows]
        low, high = spreads[values.index(best)] or (best, best)
        as_good = [
            value == best or (spread is not None and spread[0] <= high and low <= spread[1])
            for value, spread in zip(values, spreads, strict=True)
        ]
        return list(zip(texts, as_good, strict=True))

    def spread(self, records: Records, row: str, heading: str) -> tuple[float, float] | None:
        """Where a row's figure lies: the interval of a single run, or a standard deviation around those of several."""
        figure, values = self.figures[heading], _numbers(self._values(records, row, heading))
        if figure.interval is None or not values:
            return None
        if len(values) > 1:
            middle, deviation = statistics.fmean(values), statistics.stdev(values)
            return middle - deviation, middle + deviation
        return figure.interval(self.of(records, row, figure.column)[0])

    def _with_interval(self, records: Records, row: str, heading: str) -> str:
        text, spread = self.text(records, row, heading), self.spread(records, row, heading)
        single = len(self.of(records, row, self.figures[heading].column)) == 1
        return f"{text} [{spread[0]:.1f}, {spread[1]:.1f}]" if spread and single else text


def score(record: Record) -> float:
    """The primary metric of a record, as a figure."""
    return record.score


def metric(split: Literal["valid", "test"], name: str) -> Callable[[Record], float | None]:
    """A metric of the best checkpoint on a split, as a figure; None where a record has none.

    A run without a best checkpoint never had a finite score, and has none now: NaN.
    """

    def value(record: Record) -> float | None:
        if record.valid is None:
            return math.nan
        scores = record.valid if split == "valid" else record.test
        return scores.metrics.get(name) if scores else None

    return value


def cost_figures(column: str, parameters: Mapping[str, float]) -> dict[str, Figure]:
    """Size, speed and memory of a column's jobs; the paper's `parameters` are in millions.

    A job that shared the machine with others has no speed of its own.
    """
    return {
        "M parameters": Figure(column, lambda record: record.parameters / 1e6, parameters),
        "tokens/s": Figure(column, lambda record: record.tokens_per_second if _was_alone(record) else None, digits=0),
        "GiB": Figure(column, lambda record: record.peak_memory_bytes and record.peak_memory_bytes / 2**30),
    }


def summary_of(tables: Iterable[Table], records: Records, about: str) -> str | None:
    """The tables that have records below a line about them, for a page of results; None where there are none."""
    ran = [table for table in tables if table.rows_that_ran(records)]
    parts = [f"{table.title}. {table.caption}\n\n{table.markdown(records)}" for table in ran]
    return "\n\n".join([about, *parts]) + "\n" if parts else None


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's: 1 for the same order, -1 for the opposite one; None where there is no order."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [
            sum(other < value for other in values) + sum(other == value for other in values) / 2 for value in values
        ]

    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return statistics.correlation(ranks(first), ranks(second))


def cost(tables: Sequence[Table], records: Records) -> str:
    """Rows that ran down, columns across: steps/s, GiB, seconds, and how many jobs shared the machine."""
    columns = {column: table for table in tables for column in table.columns}
    ran = {row for table in tables for row in table.rows_that_ran(records)}
    rows = dict.fromkeys(row for table in tables for row in table.shown_rows(records) if row in ran)
    lines = [[row, *(_cost(table.of(records, row, column)) for column, table in columns.items())] for row in rows]
    return markdown_table(["steps/s, GiB, s, at once", *columns], lines)


def seeds_in_words(records: Records) -> str:
    """' One seed: 42.', or what was made of several."""
    seeds = sorted({record.seed for record in records})
    if not seeds:
        return ""
    if len(seeds) == 1:
        return f" One seed: {seeds[0]}."
    return f" Mean and standard deviation over the seeds {', '.join(map(str, seeds))}, or those of them that ran."


def data_sets_in_words(table: Table, records: Records) -> list[str]:
    """Which columns have records of several data sets, that must not be compared, and whose they are."""
    lines = []
    for column in table.columns:
        if not table.is_comparable(records, column):
            sets = table.data_sets(records, column)
            named = "; ".join(f"{data}: {', '.join(rows)}" for data, rows in sets.items())
            lines.append(f"**{column}: records of {len(sets)} data sets, which must not be compared** ({named}).")
    return lines


def marks_in_words(table: Table, records: Records) -> list[str]:
    """What the marks mean here, and how data were come by that are not as published."""
    lines = []
    records = [record for column in table.columns for record in table.of(records, None, column)]
    for column in table.columns:
        found = {record.data.label: record.data.meta for record in table.of(records, None, column)}
        if Data.STAND_IN in found:
            difference = _difference(found[Data.STAND_IN])
            lines.append(f"{STAND_IN} {column}: not the published data, never compare with it ({difference}).")
        if regenerated := found.get("regenerated"):
            seed = regenerated["generated"]["seed"]
            lines.append(f"{column}: generated anew by the published procedure, seed {seed}.")
    changes: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in record.changes.items():
            changes.setdefault(f"{key}={json.dumps(value)}", {})[(table.locate(record) or ("",))[0]] = None
    ran = len(table.rows_that_ran(records))
    named = [f"{text} ({', '.join(rows)})" if len(rows) < ran else text for text, rows in sorted(changes.items())]
    if changes:
        lines.append(f"{CHANGED} differs from the recipe: {', '.join(named)}.")
    older = [record for record in records if record.is_older]
    if older:
        what = "All records are" if len(older) == len(records) else f"{OLDER} is a record"
        lines.append(
            f"{what} of an older form: with the commit of the last part of a resumed run alone, without the number of "
            "examples (it is that of the test split) and, the oldest, without command and date."
        )
    return lines


def cost_in_words(records: Records) -> str:
    """What stands in `cost`, where it was measured, and in which precision."""
    text = (
        "Training steps per second, peak GPU memory, seconds of training (evaluations not counted), and how many jobs "
        "ran at once: compare times of equally many only. Of several seeds, those that ran alone count, if any did."
    )
    if any(record.resumed_after for record in records):
        text += f" {RESUMED} Stopped and continued: over all its parts, but as many at once as in the last one."
    places = sorted({f"{record.machine}, {record.precision}" for record in records})
    return f"{text} Measured on: {'; '.join(places)}." if places else text


def mean(values: Sequence[float | None]) -> float | None:
    """Of all values, or None where one is missing."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


def _marks(records: Records, which: str = STAND_IN + CHANGED) -> str:
    marks = {
        STAND_IN: any(record.is_stand_in for record in records),
        CHANGED: any(record.changes for record in records),
    }
    return "".join(mark for mark, holds in marks.items() if holds and mark in which)


def _difference(meta: dict[str, Any]) -> str:
    parts = [f"{part} has {difference}" for part, difference in (meta.get("differs_from_published") or {}).items()]
    if meta.get("stands_in_for"):
        whole = f", the first {meta['limit_bytes']:,} bytes of train" if meta.get("limit_bytes") else ""
        parts.append(f"{meta['corpus']} stands in for {meta['stands_in_for']}{whole}")
    if meta.get("limit"):
        parts.append(f"at most {meta['limit']:,} examples of each split")
    return ", ".join(parts)


def _was_alone(record: Record) -> bool:
    return record.jobs_at_once == 1


def _cost(records: Records) -> str:
    if not records:
        return NONE
    peaks = [record.peak_memory_bytes for record in records if record.peak_memory_bytes is not None]
    memory = f"{max(peaks) / 2**30:.2f}" if peaks else NONE
    records = list(filter(_was_alone, records)) or records
    rate = statistics.fmean(record.steps_per_second for record in records)
    seconds = statistics.fmean(record.seconds for record in records)
    at_once = "/".join(dict.fromkeys(str(record.jobs_at_once or "?") for record in records))
    resumed = RESUMED if any(record.resumed_after for record in records) else ""
    steps = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
    return f"{steps}, {memory}, {seconds:,.0f}, {at_once}{resumed}"
