"""A table of the paper as a site shows it: an experiment's table on the records of one folder, and its page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transnormer.experiments.experiment import Experiment
from transnormer.experiments.paper import experiment, list_tables
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import (
    NONE,
    NOT_IN_PAPER,
    Table,
    data_sets_in_words,
    marks_in_words,
    mean,
    seeds_in_words,
)
from transnormer.report.page import Cell, Page, Section
from transnormer.report.page import Table as PageTable

_RATIO = "Ratio is ours divided by the paper's; numbers on other data than the paper's have none."


@dataclass(frozen=True)
class TableView:
    """A table with its records; `setup` is of the experiment, and the paper's unless said otherwise."""

    experiment: Experiment
    setup: str
    table: Table
    records: Sequence[Record]

    @property
    def folder(self) -> str:
        """Of its records, in results/."""
        return self.experiment.folder(self.setup)

    @property
    def is_papers_setup(self) -> bool:
        """Whether it is the first one."""
        return self.setup == next(iter(self.experiment.setups))

    @property
    def unequal(self) -> str | None:
        """Why its rows are not on equal terms, if they are not."""
        return self.experiment.unequal.get(self.setup)

    @property
    def about(self) -> list[str]:
        """What a reader must know of its set-up, where there is something."""
        folder = self.experiment.setups[self.setup]
        return [text for recipes, text in self.experiment.about.items() if recipes == folder]

    @property
    def title(self) -> str:
        """What tells it from all others."""
        if len(self.experiment.tables) > 1:
            return f"{self.experiment.title}, {self.table.title}"
        return self.experiment.title if self.is_papers_setup else f"{self.experiment.title}, set-up {self.setup}"

    @property
    def file(self) -> str:
        """Of its page."""
        name = self.experiment.name + self.folder.removeprefix(self.experiment.home)
        several = len(self.experiment.tables) > 1
        return _slug(f"{name}-{self.table.title}" if several else name) + ".html"

    @property
    def command(self) -> str:
        """What makes its records anew."""
        part = next((name for name, part in self.experiment.parts.items() if self.table in part.tables), None)
        table = f" --table {part}" if part else ""
        setup = "" if self.is_papers_setup else f" --setup {self.setup}"
        return f"transnormer reproduce {self.experiment.name}{table}{setup}"


def table_views(results: Path) -> Iterator[TableView]:
    """Every table of every experiment that has records, and in the paper's set-up those that have its numbers alone."""
    for name in list_tables():
        found = experiment(name)
        setups: dict[str, str] = {}
        for setup in found.setups:
            setups.setdefault(found.folder(setup), setup)
        for folder, setup in setups.items():
            records = read_records(results / folder)
            for table in found.tables:
                shown = [record for column in table.columns for record in table.of(records, None, column)]
                view = TableView(found, _own_setup(found, table, setup), table, shown)
                if shown or (view.is_papers_setup and any(figure.paper for figure in table.figures.values())):
                    yield view


def table_page(view: TableView, link_of: dict[str, str]) -> Page:
    """The table beside the paper's numbers, what is to be said of it, and where each number comes from.

    `link_of` has the address of a record's file by its name.
    """
    table, records = view.table, view.records
    warnings = data_sets_in_words(table, records)
    notes = [*marks_in_words(table, records), *table.notes(records), _RATIO]
    if not records:
        warnings.append("**Nothing has run yet**: what stands here is the paper's alone.")
    return Page(
        title=view.title,
        lead=f"{table.caption}{seeds_in_words(records)}",
        sections=[
            Section(
                "Ours beside the paper's",
                text="\n\n".join([*view.about, *warnings, f"To make it anew:\n```\n{view.command}\n```"]),
                table=_beside(table, records),
                notes="\n\n".join(notes),
            ),
            *([_records(view, link_of)] if records else []),
        ],
    )


def data_labels(records: Sequence[Record]) -> str:
    """What they were trained on, or a dash."""
    return ", ".join(sorted({record.data.label for record in records})) or NONE


def _own_setup(found: Experiment, table: Table, setup: str) -> str:
    """Tables of one folder may each be of a set-up of their own, which is then in their title."""
    own = [each for each in found.setups if found.folder(each) == found.folder(setup)]
    return next((each for each in own if each in re.findall(r"\w+", table.title)), setup)


def _beside(table: Table, records: Sequence[Record]) -> PageTable:
    rows, columns, headings = table.shown_rows(records), [], [table.row_is]
    columns.append([Cell(row if row in table.in_paper else f"{row} ({NOT_IN_PAPER})") for row in rows])
    for heading, figure in table.figures.items():
        values = [table.value(records, row, heading) for row in rows]
        headings.append(heading)
        columns.append([Cell(text, strong=is_best) for text, is_best in table.shown_figures(records, rows, heading)])
        if figure.paper:
            papers = [figure.papers(row) for row in rows]
            comparable = all(record.data.is_papers for record in table.of(records, None, figure.column))
            headings += [f"{heading}, paper", f"{heading}, ratio"]
            columns.append([Cell(figure.text(value)) for value in papers])
            columns.append([_ratio(*pair, comparable) for pair in zip(values, papers, strict=True)])
    for heading, averaged in table.means(records).items():
        papers = [mean([table.figures[each].papers(row) for each in averaged]) for row in rows]
        headings += [heading, f"{heading}, paper"]
        columns.append([Cell(table.mean(records, row, averaged)) for row in rows])
        columns.append([Cell(NONE if value is None else f"{value:.2f}") for value in papers])
    return PageTable(headings, list(zip(*columns, strict=True)))


def _ratio(ours: float | None, papers: float | None, comparable: bool) -> Cell:
    return Cell(f"{ours / papers:.3f}" if comparable and ours is not None and papers else NONE)


def _records(view: TableView, link_of: dict[str, str]) -> Section:
    """One line a run, which links to its file; the protocols of all above it."""
    protocols = dict.fromkeys(record.protocol for record in view.records)
    rows: list[list[str | Cell]] = [
        [
            Cell(record.name, href=link_of[record.name]),
            str(record.seed),
            _figures_of(record, view.table),
            f"{record.data.label} ({record.data.digest[:12]})",
            f"{record.steps:,}",
            record.machine,
            record.commit[:12] if record.commit else NONE,
            (record.date or NONE)[:10],
            " ".join(record.command) if record.command else NONE,
        ]
        for record in view.records
    ]
    return Section(
        "Where the numbers come from",
        text="\n".join(["How they are scored:", "", *(f"- {protocol}" for protocol in protocols)]),
        table=PageTable(["record", "seed", "figure", "data", "steps", "machine", "commit", "date", "command"], rows),
    )


def _figures_of(record: Record, table: Table) -> str:
    """What stands of it in the table, by heading."""
    at = table.locate(record)
    shown = {
        heading: figure.text(figure.value(record))
        for heading, figure in table.figures.items()
        if at and figure.column == at[1] and figure.better and not figure.relative_to
    }
    return ", ".join(f"{heading} {text}" for heading, text in shown.items())


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
