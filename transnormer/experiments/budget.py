"""What fits into a given time: how long each cell is expected to take, and which of them can be finished."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from transnormer.experiments.cells import Cell
from transnormer.experiments.pack import Running

START_SECONDS = 15.0  # imports, data, the first step, the test split
# Steps per second that nobody has measured: of one run alone, evaluations included, replaced by the first real figure.
GUESSES = {
    "cuda": {"listops": 500.0, "text": 400.0, "image": 120.0, "pathfinder": 250.0, "retrieval": 200.0},
    "cpu": {"listops": 1.0, "text": 1.0, "image": 0.2, "pathfinder": 0.5, "retrieval": 0.5},
}

Item = TypeVar("Item")


@dataclass(frozen=True)
class Speed:
    """Steps per second of wall time, and how that is known."""

    steps_per_second: float
    known_from: str


class Speeds:
    """How fast cells are: as recorded here before, as seen in this grid, or as guessed.

    `records` are those of earlier cells (see `lra_record`); only those made on the same hardware count. A record of
    fewer cells at once than now is shared out: nobody knows yet how well these cells run side by side.
    """

    def __init__(self, records: Iterable[dict[str, Any]], device: str, hardware: dict[str, Any], jobs: int) -> None:
        self._device, self._hardware, self._jobs = device, hardware, jobs
        self._recorded: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, str], float] = {}
        for record in records:
            self.learn(record)

    def learn(self, record: dict[str, Any]) -> None:
        """Take a record into account."""
        which = "gpus" if self._device == "cuda" else "cpu"
        if record["device"] != self._device or record["hardware"][which] != self._hardware[which]:
            return
        rate = record["wall_steps_per_second"] or record["steps_per_second"]
        share = min(1.0, (record["cells_at_once"] or 1) / self._jobs)
        self._recorded[record["task"], record["method"]] = rate * share

    def see(self, running: Iterable[Running]) -> None:
        """Take the rates of running cells into account."""
        for each in running:
            if each.rate is not None:
                self._seen[each.cell.task, each.cell.method] = each.rate

    def of(self, cell: Cell) -> Speed:
        """The best that is known about a cell."""
        key = (cell.task, cell.method)
        if key in self._recorded:
            return Speed(self._recorded[key], "recorded")
        if key in self._seen:
            return Speed(self._seen[key], "running")
        relatives = [rate for (task, _), rate in self._seen.items() if task == cell.task]
        if relatives:
            return Speed(sum(relatives) / len(relatives), "other methods")
        return Speed(GUESSES[self._device][cell.task] / self._jobs, "guess")

    def seconds(self, cell: Cell) -> float:
        """How long a cell is expected to take from where it stands."""
        return START_SECONDS + (cell.steps - cell.saved_step()) / self.of(cell).steps_per_second


@dataclass(frozen=True)
class Budget:
    """The time that a grid has, up to a `deadline` on the clock of time.monotonic, and what is known about speed."""

    speeds: Speeds
    deadline: float

    @property
    def seconds_left(self) -> float:
        """Until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def has_room_for(self, cell: Cell) -> bool:
        """Whether a cell that starts now is expected to end in time."""
        return self.speeds.seconds(cell) <= self.seconds_left

    @property
    def allows_a_start(self) -> bool:
        """Whether a cell that starts now would come to its first step."""
        return self.seconds_left > START_SECONDS

    def plan(self, cells: Sequence[Cell], jobs: int) -> tuple[list[Cell], list[Cell]]:
        """Which cells are expected to fit, and which are not."""
        return what_fits([(cell, self.speeds.seconds(cell)) for cell in cells], jobs, self.seconds_left)


def what_fits(durations: Sequence[tuple[Item, float]], jobs: int, seconds: float) -> tuple[list[Item], list[Item]]:
    """Those that end in time when `jobs` at once are taken in order, each as soon as there is room, and the others.

    One that would not end in time is passed over; a shorter one behind it may still fit.
    """
    free_at = [0.0] * jobs
    fitting, left = [], []
    for item, duration in durations:
        place = free_at.index(min(free_at))
        if free_at[place] + duration <= seconds:
            free_at[place] += duration
            fitting.append(item)
        else:
            left.append(item)
    return fitting, left
