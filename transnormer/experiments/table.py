"""A table: records in rows and columns beside the paper's numbers, with marks for what cannot be compared."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transnormer.experiments.record import Data, Record

NONE = "–"
NOT_IN_PAPER = "not in the paper"
STAND_IN, CHANGED, RESUMED = "†", "‡", "§"

Records = Sequence[Record]


@dataclass(frozen=True)
class Table:
    """Rows down; for each column ours and the paper's figure, then means over some columns.

    `locate` says in which row and column a record belongs, if in any; `paper` has the rows in its order, those that it
    does not have without figures.
    """

    paper: Mapping[str, Mapping[str, float]]
    columns: Sequence[str]
    locate: Callable[[Record], tuple[str, str] | None]
    means: Callable[[Records], Mapping[str, Sequence[str]]] = lambda _: {}
    higher_is_better: bool = True

    def markdown(self, records: Records) -> str:
        """The best of ours in each column is bold; a row that the paper does not have is said to be so."""
        rows, means = self.rows(records), self.means(records)
        ours = {column: [_mean_score(self.of(records, row, column)) for row in rows] for column in self.columns}
        choose = max if self.higher_is_better else min
        best = {column: choose(_numbers(scores), default=None) for column, scores in ours.items()}
        lines = []
        for index, row in enumerate(rows):
            paper = self.paper.get(row, {})
            line = [row if paper else f"{row} ({NOT_IN_PAPER})"]
            for column in self.columns:
                text, score = self.text(records, row, column), ours[column][index]
                line += [f"**{text}**" if score is not None and score == best[column] else text]
                line += [_figure(paper.get(column))]
            for columns in means.values():
                line += [self.mean(records, row, columns), _figure(_mean(list(map(paper.get, columns))))]
            lines.append(line)
        return markdown(["method", *(name for each in (*self.columns, *means) for name in (each, "paper"))], lines)

    def rows(self, records: Records) -> list[str]:
        """Those of the paper and of others those that ran, in the order of `paper`."""
        ran = self.rows_that_ran(records)
        known = [row for row, figures in self.paper.items() if figures or row in ran]
        return list(dict.fromkeys([*known, *ran]))

    def rows_that_ran(self, records: Records) -> list[str]:
        """In the order of the records."""
        return list(dict.fromkeys(found[0] for record in records if (found := self.locate(record))))

    def of(self, records: Records, row: str | None, column: str) -> list[Record]:
        """The records, one for each seed, in a row (None: in any) and column."""
        located = [(record, self.locate(record)) for record in records]
        return [record for record, at in located if at and at[1] == column and row in (None, at[0])]

    def text(self, records: Records, row: str, column: str) -> str:
        """The mean over seeds, its deviation where there are several, and marks for what makes it incomparable."""
        found = self.of(records, row, column)
        text = _figure(_mean_score(found))
        if len(found) > 1:
            text += f" ± {statistics.stdev(record.score for record in found):.2f}"
        return text + _marks(found)

    def mean(self, records: Records, row: str, columns: Sequence[str]) -> str:
        """The mean of a row over columns, with the marks of all that is in it."""
        found = [self.of(records, row, column) for column in columns]
        mean = _mean([_mean_score(each) for each in found])
        return NONE if mean is None else _figure(mean) + _marks([record for each in found for record in each])

    def cost(self, records: Records) -> str:
        """Rows that ran down, columns across: steps/s, GiB, seconds, and how many jobs shared the machine."""
        ran = self.rows_that_ran(records)
        rows = [row for row in self.rows(records) if row in ran]
        lines = [[row, *(_cost(self.of(records, row, column)) for column in self.columns)] for row in rows]
        return markdown(["steps/s, GiB, s, at once", *self.columns], lines)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Any table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def seeds_in_words(records: Records) -> str:
    """' One seed: 42.', or what was made of several."""
    seeds = sorted({record.seed for record in records})
    if not seeds:
        return ""
    if len(seeds) == 1:
        return f" One seed: {seeds[0]}."
    return f" Mean and standard deviation over the seeds {', '.join(map(str, seeds))}, or those of them that ran."


def marks_in_words(table: Table, records: Records) -> list[str]:
    """What the marks mean here, and how data were come by that are not as published."""
    lines = []
    for column in table.columns:
        found = {record.data.label: record.data.meta for record in table.of(records, None, column)}
        if Data.STAND_IN in found:
            difference = _difference(found[Data.STAND_IN])
            lines.append(f"{STAND_IN} {column}: not the published data, never compare with it ({difference}).")
        if regenerated := found.get("regenerated"):
            seed = regenerated["generated"]["seed"]
            lines.append(f"{column}: generated anew by the published procedure, seed {seed}.")
    changes = sorted({f"{key}={json.dumps(value)}" for record in records for key, value in record.changes.items()})
    return [*lines, f"{CHANGED} differs from the recipe: {', '.join(changes)}."] if changes else lines


def cost_in_words(records: Records) -> str:
    """What stands in `Table.cost`, where it was measured, and in which precision."""
    text = (
        "Training steps per second, peak GPU memory, seconds of training (evaluations not counted), and how many jobs "
        "ran at once: compare times of equally many only."
    )
    if any(record.resumed_after for record in records):
        text += f" {RESUMED} Stopped and continued: over all its parts, but as many at once as in the last one."
    places = sorted({f"{record.machine}, {record.precision}" for record in records})
    return f"{text} Measured on: {'; '.join(places)}." if places else text


def _mean(values: Sequence[float | None]) -> float | None:
    """Of all values, or None where one is missing."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


def _mean_score(records: Records) -> float | None:
    return _mean([record.score for record in records])


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _marks(records: Records) -> str:
    marks = {
        STAND_IN: any(record.is_stand_in for record in records),
        CHANGED: any(record.changes for record in records),
    }
    return "".join(mark for mark, holds in marks.items() if holds)


def _difference(meta: dict[str, Any]) -> str:
    parts = [f"{part} has {difference}" for part, difference in (meta.get("differs_from_published") or {}).items()]
    if meta.get("limit"):
        parts.append(f"at most {meta['limit']:,} examples of each split")
    return ", ".join(parts)


def _cost(records: Records) -> str:
    if not records:
        return NONE
    peaks = [record.peak_memory_bytes for record in records if record.peak_memory_bytes is not None]
    memory = f"{max(peaks) / 2**30:.2f}" if peaks else NONE
    rate = statistics.fmean(record.steps_per_second for record in records)
    seconds = statistics.fmean(record.seconds for record in records)
    at_once = "/".join(dict.fromkeys(str(record.jobs_at_once or "?") for record in records))
    resumed = RESUMED if any(record.resumed_after for record in records) else ""
    return f"{rate:,.0f}, {memory}, {seconds:,.0f}, {at_once}{resumed}"
