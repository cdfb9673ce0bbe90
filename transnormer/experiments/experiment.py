"""An experiment of the paper: which jobs its table is made of, and how the table shows them beside the paper's numbers.

To add one, write `paper/<name>.py` with a subclass of `Experiment` and name it in `paper/__init__.py`.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from transnormer.config.init_folder import model_keys
from transnormer.config.load import PREPARATION_KEYS, load_config
from transnormer.errors import ConfigError, command, did_you_mean
from transnormer.experiments.faults import Faults
from transnormer.experiments.job import INIT_KEY, Choice, Job
from transnormer.experiments.record import Record
from transnormer.experiments.table import (
    Table,
    cost,
    cost_in_words,
    data_sets_in_words,
    marks_in_words,
    seeds_in_words,
)
from transnormer.models.presets import model_config
from transnormer.tasks.registry import settled

if TYPE_CHECKING:
    from transnormer.experiments.trials import Trials

TRIALS = "trials"  # whom an override is for that is for trials alone: 'trials:train.steps=500'
_OPTION_OF = {"task": "--tasks", "model.preset": "--methods", "seed": "--seeds"}  # keys that every job has its own of


@dataclass(frozen=True)
class Selection:
    """What a person asked for of an experiment; an override is for every job, or for those of a row: 't2:key=value'."""

    rows: Sequence[str]
    columns: Sequence[str]
    seeds: Sequence[int]
    setup: str
    data: Path | None = None
    overrides: Sequence[str] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        """Those that are overridden, in any row."""
        split = map(split_override, self.overrides)
        return [key_of(text) for named, text in split if named is None or named in self.rows]

    def keys_of(self, row: str) -> list[str]:
        """Those that are overridden in a row."""
        return list(map(key_of, self.overrides_of(row)))

    def overrides_of(self, row: str) -> list[str]:
        """What is overridden in a row, as key=value; what is said of the row alone comes last."""
        split = list(map(split_override, self.overrides))
        return [text for wanted in (None, row) for named, text in split if named == wanted]


@dataclass(frozen=True)
class Cell:
    """A job of an experiment, by its place in it."""

    experiment: Experiment
    row: str
    column: str
    seed: int
    setup: str


@dataclass(frozen=True)
class Part:
    """Of an experiment that is several tables of the paper, one: its rows, and the table of each set-up."""

    rows: Sequence[str]
    tables: Sequence[Table]


class Experiment(ABC):
    """Rows (`--methods`) and columns (`--tasks`), each crossing of which is a job for every seed.

    A row is what it changes of a column's recipe (`settings`): a method's preset, or one variant of a model. Its tables
    show figures of the jobs' records. Jobs of experiments with the same `home` share their folders: what two of them
    have in common runs once.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tables: ClassVar[Sequence[Table]]  # those without records are left out of its page, unless all are
    parts: ClassVar[Mapping[str, Part]] = {}  # what can be named in `--table`
    # Where the recipes of each set-up lie; the first is the default: the paper's, where that takes no days.
    setups: ClassVar[Mapping[str, str]]
    # What a reader must know of a set-up, by the folder of its recipes.
    about: ClassVar[Mapping[str, str]] = {}
    # By name, set-ups in which rows are not on equal terms, and why.
    unequal: ClassVar[Mapping[str, str]] = {}
    # Steps per second that nobody has measured, by device and column, of one job alone, evaluations included.
    guesses: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    # How many times as fast as that a row is, by device; 1 where nobody knows.
    relative_speeds: ClassVar[Mapping[str, Mapping[str, float]]] = {}
    # Whether the weights of a job stay once it has a record; many short jobs of large models would fill a disk.
    keeps_weights: ClassVar[bool] = True

    @property
    def home(self) -> str:
        """The folder of its jobs in runs/ and results/."""
        return self.name

    @property
    @abstractmethod
    def rows(self) -> Sequence[str]:
        """What can be named in `--methods`, in the order in which it is run where no row is known to be slower."""

    @abstractmethod
    def columns(self, setup: str) -> Sequence[str]:
        """What can be named in `--tasks`."""

    @abstractmethod
    def recipe(self, column: str, setup: str) -> str:
        """The shipped recipe of a column's jobs."""

    @abstractmethod
    def settings(self, row: str, column: str, selection: Selection) -> list[str]:
        """What a row is: what it changes of the recipe, as key=value; what a person overrides is laid over it.

        Only the latter is a difference from the recipe that a table marks.
        """

    def variants(self, row: str, setup: str) -> Mapping[str, Sequence[str]]:
        """Jobs of one row, column and seed, of which a table shows the best: their names and settings."""
        return {"": ()}

    def trials(self, setup: str) -> Trials | None:
        """Short jobs, the variants of which are what a row may choose from for the jobs of this set-up."""
        return None

    def parent(self, row: str, column: str, seed: int, selection: Selection) -> Cell | None:
        """The job whose final weights those of a row and column begin with; `settings` must name their preset."""
        return None

    def data_name(self, column: str) -> str:
        """What `transnormer data prepare` calls the data of a column."""
        return column

    def is_prepared_on_demand(self, column: str) -> bool:
        """Whether a job can do without a store that somebody has prepared."""
        return True

    def data_origin(self, column: str) -> str:
        """Where the files are to be had, for whoever has none: nothing is downloaded."""
        return ""

    def conflict(self, records: Sequence[Record], jobs: Sequence[Job]) -> str | None:
        """What keeps records that lie in a folder from standing in one table with these jobs: another set-up."""
        ours = {job.recipe.rpartition("/")[0] for job in jobs}
        others = recipe_folders(records) - ours
        named = [", ".join(f"{folder}/*" for folder in sorted(folders)) for folders in (others, ours)]
        return f"has records of {named[0]}, these jobs are of {named[1]}" if others else None

    def page(self, records: Sequence[Record]) -> str:
        """The table, and what a reader must know about it, as Markdown; records of other tables are left out."""
        records = [record for record in records if any(table.locate(record) for table in self.tables)]
        tables = [table for table in self.tables if table.rows_that_ran(records)] or self.tables[:1]
        folders = sorted(recipe_folders(records) - {next(iter(self.setups.values()))})
        recipes = f" Recipes: {', '.join(f'`{folder}/*`' for folder in folders)}." if folders else ""
        about = [text for folder, text in self.about.items() if folder in recipe_folders(records)]
        parts = [
            f"# {self.title}\n\nGenerated from the JSON files beside it (`transnormer reproduce {self.name}` writes "
            f"both); one file is one run, with its configuration, data, versions and hardware.{recipes}",
            *about,
            *(part for table in tables for part in _section(table, records)),
            f"## Cost\n\n{cost_in_words(records)}",
            self.cost(tables, records),
        ]
        return "\n\n".join(parts) + "\n"

    def cost(self, tables: Sequence[Table], records: Sequence[Record]) -> str:
        """What the jobs behind these tables cost, as a table."""
        return cost(tables, records)

    def folder(self, setup: str) -> str:
        """Where the jobs of a set-up lie, in runs/ and in results/."""
        return self.home if setup == next(iter(self.setups)) else f"{self.home}-{setup}"

    def place_of(self, home: str, folder: Path) -> Path:
        """Where jobs of another experiment lie: beside a folder that is named as this one's are, or in any other."""
        is_usual = folder.name in {self.folder(setup) for setup in self.setups}
        return (folder.parent if is_usual else folder) / home

    def page_file(self, results: Path) -> Path:
        """Beside the records."""
        return results / ("README.md" if self.home == self.name else f"{self.name}.md")


def _section(table: Table, records: Sequence[Record]) -> list[str]:
    """A table, what it shows, and what is to be said of it."""
    shown = [record for column in table.columns for record in table.of(records, None, column)]
    notes = [*data_sets_in_words(table, shown), *marks_in_words(table, shown), *table.notes(shown)]
    caption = f"## {table.title}\n\n{table.caption}{seeds_in_words(shown)}"
    return [caption, table.markdown(shown), *(["  \n".join(notes)] if notes else [])]


def chosen_setup(text: str | None, known: Iterable[str]) -> str:
    """The name of a set-up, or the first."""
    names = list(known)
    if text is not None and text not in names:
        raise ConfigError(f"--setup: unknown set-up '{text}'", hint=did_you_mean(text, names))
    return text or names[0]


def part_of(experiment: Experiment, table: str | None) -> Sequence[str]:
    """The rows of one of its tables, or of all."""
    if table is None:
        return experiment.rows
    if not experiment.parts:
        raise ConfigError(f"--table: {experiment.name} is one table", hint="leave it out")
    if table not in experiment.parts:
        known = ", ".join(experiment.parts)
        raise ConfigError(f"--table: no table '{table}' in {experiment.name}", hint=f"there are: {known}")
    return experiment.parts[table].rows


def selections_of_all(
    experiments: Sequence[Experiment], setup: str | None, seeds: Sequence[int], data: Path | None, keys: Sequence[str]
) -> dict[Experiment, Selection]:
    """All rows and columns of each experiment; a set-up is for those that have it, the others take their own."""
    if setup is not None:
        chosen_setup(setup, dict.fromkeys(name for each in experiments for name in each.setups))
    chosen = {each: chosen_setup(setup if setup in each.setups else None, each.setups) for each in experiments}
    return {each: Selection(each.rows, each.columns(name), seeds, name, data, keys) for each, name in chosen.items()}


def plan(
    experiment: Experiment, selection: Selection, runs: Path, choices: Mapping[tuple[str, str], Choice] | None = None
) -> list[Job]:
    """All jobs: seed by seed, row by row, over all columns and variants; a runner starts the longest of a seed first.

    Those that cannot work are named in one error, each with its reason. `choices`, where trials decide settings, are
    those of rows and columns; without its choice a row and column has no job yet.
    """
    trials = [TRIALS] if experiment.trials(selection.setup) else []
    addressees = [*selection.rows, *_experiments_of_parents(experiment, selection), *trials]
    for row, override in map(split_override, selection.overrides):
        if row is not None and row not in addressees:
            raise ConfigError(f"'{row}:{override}': there is no job of '{row}'", hint=did_you_mean(row, addressees))
        if (key := key_of(bare(override))) in _OPTION_OF:
            raise ConfigError(f"{key} differs from job to job", hint=f"leave it out and use {_OPTION_OF[key]}")
    data = selection.data
    if data is not None and not data.is_dir():
        raise ConfigError(
            f"--data: {data} is {'a file' if data.exists() else 'not there'}", hint="give a folder of stores"
        )
    faults = Faults()
    stores: dict[str, list[str]] = {}
    variants = {row: experiment.variants(row, selection.setup) for row in selection.rows}
    every = [(seed, row, variant) for seed in selection.seeds for row in variants for variant in variants[row]]
    for column in selection.columns:
        with faults.of(job_name(row, column, seed, variant) for seed, row, variant in every):
            stores[column] = _store(experiment, column, selection)
    jobs, parent_of = [], _parents(experiment, selection, runs)
    places = product(selection.seeds, selection.rows, stores)
    for seed, row, column, variant in ((*place, each) for place in places for each in variants[place[1]]):
        choice = (choices or {}).get((row, column))
        if choices is not None and choice is None:
            continue
        name = job_name(row, column, seed, variant)
        with faults.of([name]):
            recipe = experiment.recipe(column, selection.setup)
            chosen = choice.settings if choice else ()
            settings = [*experiment.settings(row, column, selection), *chosen, *variants[row][variant]]
            parent = parent_of(row, column, seed)
            init = [f"model.init={parent.folder.absolute()}"] if parent else []
            arguments = [*settings, *init, *selection.overrides_of(row), *stores[column], f"seed={seed}"]
            config = settled(load_config(recipe, arguments))
            model_config(config.model)  # the config of a model checks its options
            if config.model.init and not parent:
                model_keys(Path(config.model.init))  # and this, that there is a model in it
            asked = (recipe, *arguments)
            jobs.append(Job(name, row, column, runs / name, config, asked, tuple(settings), parent, choice=choice))
    faults.raise_if_any(len(every) * len(selection.columns))
    return jobs


def split_override(override: str) -> tuple[str | None, str]:
    """The row that an override is for, None for all, and what it is for any command: key=value."""
    row, colon, text = override.partition(":")
    return (row.strip(), text) if colon and "=" not in row else (None, override)  # a colon may be in the value


def bare(override: str) -> str:
    """An override as any command reads it, whomever it is for."""
    named, text = split_override(override)
    return text if named is None else bare(text)


def key_of(override: str) -> str:
    """The key of 'key=value'."""
    return override.partition("=")[0].strip()


def _experiments_of_parents(experiment: Experiment, selection: Selection) -> list[str]:
    places = [(row, column, seed) for seed in selection.seeds for row in selection.rows for column in selection.columns]
    cells = [experiment.parent(*place, selection) for place in places]
    return list(dict.fromkeys(cell.experiment.name for cell in cells if cell))


def _parents(experiment: Experiment, selection: Selection, runs: Path) -> Callable[[str, str, int], Job | None]:
    """By row, column and seed: the job whose weights another begins with, each planned once; none with `model.init`.

    It runs on the same device.
    """
    planned: dict[Cell, Job] = {}
    split = list(map(split_override, selection.overrides))
    device = [text for named, text in split if named is None and key_of(text) == "train.device"]

    def find(row: str, column: str, seed: int) -> Job | None:
        cell = None if INIT_KEY in selection.keys_of(row) else experiment.parent(row, column, seed, selection)
        if cell is not None and cell not in planned:
            home = cell.experiment.folder(cell.setup)
            theirs = [text for named, text in split if named == cell.experiment.name]
            overrides = [*device, *(text for text in theirs if split_override(text)[0] in (None, cell.row))]
            only = Selection([cell.row], [cell.column], [cell.seed], cell.setup, selection.data, overrides)
            (job,) = plan(cell.experiment, only, experiment.place_of(home, runs))
            planned[cell] = replace(job, home=home)
        return planned[cell] if cell else None

    return find


def recipe_folders(records: Sequence[Record]) -> set[str]:
    """Where the recipes of these records lie: one folder a set-up."""
    return {record.recipe_folder for record in records if record.recipe_folder}


def job_name(row: str, column: str, seed: int, variant: str = "") -> str:
    """What a job, its run folder and its record are called."""
    return "-".join([column, row, *([variant] if variant else []), str(seed)])


def _store(experiment: Experiment, column: str, selection: Selection) -> list[str]:
    """The override that names the store of a column, if it needs one; an error says how to prepare it."""
    keys, data, name = selection.keys, selection.data, experiment.data_name(column)
    if not {"data.store", "data.source"}.isdisjoint(keys):
        return []
    if data is not None and (data / column).exists():
        if idle := [key for key in keys if key in PREPARATION_KEYS]:
            raise ConfigError(
                f"{', '.join(idle)}: {name} is prepared already, in {data / column}",
                hint="leave it out, or leave --data out where the task is generated",
            )
        return [f"data.store={data / column}"]
    if not experiment.is_prepared_on_demand(column):
        folder = data or Path("data")
        raise ConfigError(
            f"{name} cannot be generated, and " + (f"{data} has no '{column}'" if data else "there is no --data"),
            hint=f"`{command('data', 'prepare', *name.split(), '--source', 'PATH', '--out', folder / column)}`, "
            + f"then --data {shlex.quote(str(folder))}"
            + (f"; {origin}" if (origin := experiment.data_origin(column)) else ""),
        )
    return []
