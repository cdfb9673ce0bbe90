"""The Long-Range Arena of the paper: all cells, several at once, and the table of their results.

A grid can be stopped and run again at any time: what is finished is skipped, what has a checkpoint is resumed, and what
was made with other settings is an error before anything starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transnormer.config.schema import TrainSection
from transnormer.data.examples import ExampleStore
from transnormer.data.store_folder import Terminated
from transnormer.environment import hardware
from transnormer.errors import ConfigError, DataError, Preempted, RunInUseError, TransNormerError
from transnormer.experiments.budget import Budget, Speeds
from transnormer.experiments.cells import Cell
from transnormer.experiments.faults import Faults
from transnormer.experiments.grid import Grid, Square, Status
from transnormer.experiments.grid_display import GridDisplay
from transnormer.experiments.lra_record import (
    cell_record,
    check_record,
    name_of,
    record_file,
    write_record,
    write_table,
)
from transnormer.experiments.mps import shared_gpu
from transnormer.experiments.pack import Ended, Pack
from transnormer.report.lra_table import read_records, recipe_folders
from transnormer.tasks.lra import LongRangeArena
from transnormer.train.durable import disk_errors
from transnormer.train.ranks import Ranks
from transnormer.train.recorder import require_tensorboard
from transnormer.train.run_folder import RunFolder
from transnormer.train.speed import choose_execution

# One compiles or evaluates while the other trains. More gain little: the kernels of one cell alone keep an H200 busy
# for nine tenths of its step (T2, ListOps), and several cells take the cache from each other.
CELLS_AT_ONCE = {"cpu": 1, "cuda": 2}
_PATIENCE = 60.0  # seconds that processes of a killed grid may take to save


@dataclass
class LRAGrid:
    """A grid whose cells have been checked against what lies in `runs` and `results`; nothing is written yet."""

    cells: list[Cell]
    runs: Path
    results: Path
    jobs: int | None = None
    budget_minutes: float | None = None

    def __post_init__(self) -> None:
        began = time.monotonic()
        self._check_options()
        self.device = device_of(self.cells)
        self.records = {name_of(record): record for record in read_records(self.results)}
        self._check_setup()
        faults = Faults()
        self.stores = _open_stores([cell for cell in self.cells if has_store(cell)], faults)
        self._check_what_is_there(faults)
        self.todo = [cell for cell in self.cells if cell.name not in self.records and cell.result() is None]
        self._check_what_is_to_run(faults)
        faults.raise_if_any(len(self.cells))
        self.at_once = max(1, min(self.jobs or CELLS_AT_ONCE[self.device], len(self.todo)))
        self.budget: Budget | None = None
        if self.budget_minutes is not None:
            speeds = Speeds(self.records.values(), self.device, _hardware(self.device), self.at_once)
            self.budget = Budget(speeds, began + 60 * self.budget_minutes)

    def run(self, display: GridDisplay) -> None:
        """Run what is not finished, write the records and the table; raises at the end if something went wrong.

        A grid whose time is up has done what it was asked for: that is no error.
        """
        done = len(self.cells) - len(self.todo)
        display.say(f"cells: {done} of {len(self.cells)} finished, {len(self.todo)} to run, {self.at_once} at once")
        self._name_records(display.say)
        starts = self._plan(display.say)
        for folder in (self.results, self.runs):
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._be_alone(stack)
            _wait_for_writers(self.todo, display.say)
            self._prepare(starts, display.say)
            self._record_what_is_finished()
            write_table(self.results)
            pack = Pack(self.at_once, self._shared_gpu(stack, display.say))
            grid = Grid(self._squares(), pack, display, self._on_finished, self.budget)
            with display:
                grid.run()
        self._conclude(grid, display.say)

    def _check_options(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ConfigError(f"--jobs is {self.jobs}; at least one cell must run", hint="leave it out, or --jobs 1")
        if self.budget_minutes is not None and not self.budget_minutes > 0:
            raise ConfigError(
                f"--budget-minutes is {self.budget_minutes:g}", hint="give a number above 0, or leave it out"
            )
        for option, folder in (("--runs", self.runs), ("--results", self.results)):
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"{option}: {folder} is a file, not a folder", hint=f"choose another {option}")

    def _check_setup(self) -> None:
        """A folder of records is one table, and a table is of one set-up."""
        ours = {cell.recipe.rpartition("/")[0] for cell in self.cells}
        if others := recipe_folders([*self.records.values()]) - ours:
            raise ConfigError(
                f"--results: {self.results} has records of {', '.join(f'{folder}/*' for folder in sorted(others))}, "
                f"these cells are of {', '.join(f'{folder}/*' for folder in sorted(ours))}",
                hint="choose another --results",
            )

    def _check_what_is_there(self, faults: Faults) -> None:
        """Runs and records of earlier grids."""
        for cell in self.cells:
            with faults.of([cell.name]):
                cell.check_folder()
                store = self.stores.get(cell.task)
                if record := self.records.get(cell.name):
                    check_record(record, cell, record_file(cell, self.results), store)
                elif store and cell.result():
                    _check_data(cell, store)

    def _check_what_is_to_run(self, faults: Faults) -> None:
        """What all cells ask of this machine, and those of a task of the data that are still to be made."""
        if self.todo:
            with faults.of(cell.name for cell in self.todo):
                _check_machine(self.todo[0].config.train, self.device)
        for cells in _by_task(cell for cell in self.todo if not has_store(cell)).values():
            with faults.of(cell.name for cell in cells):
                LongRangeArena.find_data(cells[0].config)

    def _name_records(self, say: Callable[[str], None]) -> None:
        """Whose records stand for cells: in a clone of the repository they are not runs of this machine."""
        found = [self.records[cell.name] for cell in self.cells if cell.name in self.records]
        if not found:
            return
        commits = Counter(record.get("commit") for record in found)
        origins = [
            f"of {f'commit {_shortened(commit)}' if commit else 'an unknown commit'} ({count})"
            for commit, count in commits.items()
        ]
        say(
            f"{len(found)} of the finished are records in {self.results}, {', '.join(origins)}; "
            "to run them anew, give other folders: --results DIR --runs DIR"
        )

    def _plan(self, say: Callable[[str], None]) -> bool:
        """Whether there is time to start a cell; says which fit into the budget and which do not, and how it knows."""
        if self.budget is None:
            return True
        fitting, left = self.budget.plan(self.todo, self.at_once)
        say(f"budget of {self.budget_minutes:g} min: {len(fitting)} cells are expected to fit, {len(left)} are not")
        speeds = self.budget.speeds
        for word, cells in (("fits", fitting), ("does not fit", left)):
            for cell in cells:
                known_from = speeds.of(cell).known_from
                say(f"  {word}: {cell.name}, about {speeds.seconds(cell) / 60:.1f} min ({known_from})")
        if left and self.budget.allows_a_start:
            say("time that is left goes to the first of those that do not fit; they are stopped with a checkpoint")
        return self.budget.allows_a_start

    def _be_alone(self, stack: ExitStack) -> None:
        try:
            stack.enter_context(RunFolder(self.runs).lock())
        except RunInUseError as error:
            raise RunInUseError(error.message, hint="wait for that grid to end, or choose another --runs") from error

    def _prepare(self, starts: bool, say: Callable[[str], None]) -> None:
        """Generate or find the data of each task once, before several cells ask for it at the same time."""
        unrecorded = [cell for cell in self.cells if cell.name not in self.records and cell not in self.todo]
        # Should time turn out to be longer than planned, a cell of any task may be started.
        for task, cells in _by_task([*unrecorded, *(self.todo if starts else [])]).items():
            if task in self.stores:
                continue
            say(f"lra/{task}: looking for its data; where there is none yet, it is generated, which takes minutes")
            faults = Faults()
            try:
                self.stores |= _open_stores(cells, faults)
            except Terminated:
                raise Preempted(
                    f"stopped while the data of lra/{task} were generated", hint="the same command starts with them"
                ) from None
            faults.raise_if_any(len(self.cells))

    def _record_what_is_finished(self) -> None:
        """A grid that was killed may have left a result that nobody has recorded."""
        for cell in self.cells:
            if cell.name not in self.records and (result := cell.result()):
                _check_data(cell, self.stores[cell.task])
                self._record(cell, result, None)

    def _record(self, cell: Cell, result: dict[str, Any], ended: Ended | None) -> dict[str, Any]:
        record = cell_record(cell, result, self.stores[cell.task], ended)
        write_record(record, record_file(cell, self.results))
        self.records[cell.name] = record
        return record

    def _on_finished(self, ended: Ended) -> float:
        result = ended.cell.result()
        if result is None:
            raise TransNormerError(f"{ended.cell.folder} ended without a result", hint=f"see {ended.cell.log_file}")
        record = self._record(ended.cell, result, ended)
        if self.budget:
            self.budget.speeds.learn(record)
        return record["test_accuracy"]

    def _shared_gpu(self, stack: ExitStack, say: Callable[[str], None]) -> dict[str, str]:
        """The environment of the cells: on a GPU, several processes need a service to run at the same time."""
        if self.device != "cuda" or self.at_once == 1:
            return {}
        return stack.enter_context(shared_gpu(self.runs / ".mps", say))

    def _squares(self) -> list[Square]:
        squares = []
        for cell in self.cells:
            record = self.records.get(cell.name)
            squares.append(Square(cell, Status.finished, record["test_accuracy"]) if record else Square(cell))
        return squares

    def _conclude(self, grid: Grid, say: Callable[[str], None]) -> None:
        """Say what there is and what is left; a signal or a failed cell decides the exit code."""
        failed, left = grid.those(Status.failed), grid.those(Status.waiting, Status.stopped)
        say(f"table: {self.results / 'README.md'}")
        if left:
            say(f"left: {_names(left)}; the same command goes on with them")
        from_outside = grid.those(Status.stopped) and not grid.time_is_up
        if left and (grid.interrupts.count or from_outside):
            raise Preempted(
                f"stopped with {len(left)} of {len(self.cells)} cells left", hint="the same command goes on with them"
            )
        if failed:
            raise TransNormerError(
                f"{len(failed)} of {len(self.cells)} cells failed: {_names(failed)}",
                hint=f"their logs are {self.runs}/*.log; the same command tries them again",
            )


def device_of(cells: Sequence[Cell]) -> str:
    """Where the cells will run; they all have the same settings."""
    wanted = cells[0].config.train.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("train.device is cuda, but torch sees no CUDA device", hint="use train.device=auto")
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"


def _open_stores(cells: Sequence[Cell], faults: Faults) -> dict[str, ExampleStore]:
    """The data of each task, if models can be built for them; where there are none yet, they are generated."""
    stores = {}
    for task, same in _by_task(cells).items():
        with faults.of(cell.name for cell in same):
            arena = LongRangeArena(same[0].config)
            arena.model_config()
            stores[task] = arena.store
    return stores


def _check_machine(train: TrainSection, device: str) -> None:
    """Raise what a run would about this machine; on a GPU, asking would keep a place on it for good."""
    if train.tensorboard:
        require_tensorboard()
    if device == "cpu":
        choose_execution(train, Ranks(train))


def _check_data(cell: Cell, store: ExampleStore) -> None:
    """Refuse to record a finished run as one of a store that it did not see."""
    try:
        RunFolder(cell.folder).require_data(store)
    except DataError as error:
        raise DataError(
            error.message, hint="use the same --data, move the run away, or choose another --runs"
        ) from error


def _shortened(commit: str) -> str:
    """Seven digits of a commit, and that there were changes which it does not have."""
    return commit[:7] + ("-dirty" if commit.endswith("-dirty") else "")


def has_store(cell: Cell) -> bool:
    """Whether its data are prepared already."""
    return cell.config.data.store is not None


def _hardware(device: str) -> dict[str, Any]:
    """Names of the processor and the GPUs; asking torch for the latter would keep a place on the GPU for good."""
    if device == "cpu":
        return hardware()
    ask = "import json; from transnormer.environment import hardware; print(json.dumps(hardware()))"
    return json.loads(subprocess.run([sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout)


def _wait_for_writers(cells: Sequence[Cell], say: Callable[[str], None]) -> None:
    """Processes of a grid that was killed save and end; others are not waited for any longer than that."""
    deadline = time.monotonic() + _PATIENCE
    for cell in cells:
        if cell.is_being_written():
            say(f"{cell.name}: waiting for the process that writes {cell.folder}")
        while cell.is_being_written():
            if time.monotonic() > deadline:
                raise RunInUseError(
                    f"{cell.folder} is being written by another process",
                    hint=f"wait for it to end or stop it; its number is in {RunFolder(cell.folder).lock_file}",
                )
            time.sleep(0.1)


def _by_task(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Cells of a task have the same data."""
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.task, []).append(cell)
    return found


def _names(cells: Iterable[Cell]) -> str:
    return ", ".join(cell.name for cell in cells)
