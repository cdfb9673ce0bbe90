"""What fits into a given time: how long each job is expected to take, and which of them can be finished."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from transnormer.experiments.job import Job
from transnormer.experiments.record import Record
from transnormer.experiments.worker_pool import Worker

START_SECONDS = 15.0  # imports, data, the first step, the test split
GUESS = {"cuda": 100.0, "cpu": 0.5}  # steps per second of one job alone that nobody has a better idea of

Item = TypeVar("Item")


@dataclass(frozen=True)
class Speed:
    """Steps per second of wall time, and how that is known."""

    steps_per_second: float
    known_from: str


class Speeds:
    """How fast jobs are: as recorded here before, as seen running, or as guessed.

    Only records made on the same hardware count. One of fewer jobs at once than now is shared out: nobody knows yet how
    well these jobs run side by side. `guesses` are steps per second of one job alone, by column.
    """

    def __init__(
        self,
        records: Iterable[Record],
        device: str,
        hardware: dict[str, Any],
        at_once: int,
        guesses: Mapping[str, float],
    ) -> None:
        self._device, self._hardware, self._at_once, self._guesses = device, hardware, at_once, guesses
        self._recorded: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, str], float] = {}
        for record in records:
            self.learn(record)

    def learn(self, record: Record) -> None:
        """Take a record into account."""
        which = "gpus" if self._device == "cuda" else "cpu"
        if record.device != self._device or getattr(record.hardware, which) != self._hardware[which]:
            return
        rate = record.wall_steps_per_second or record.steps_per_second
        share = min(1.0, (record.jobs_at_once or 1) / self._at_once)
        self._recorded[record.recipe or record.task, record.preset] = rate * share

    def see(self, running: Iterable[Worker]) -> None:
        """Take the rates of running jobs into account."""
        for each in running:
            if each.rate is not None:
                self._seen[_kind(each.job)] = each.rate

    def of(self, job: Job) -> Speed:
        """The best that is known about a job."""
        key = _kind(job)
        if key in self._recorded:
            return Speed(self._recorded[key], "recorded")
        if key in self._seen:
            return Speed(self._seen[key], "running")
        relatives = [rate for (recipe, _), rate in self._seen.items() if recipe == job.recipe]
        if relatives:
            return Speed(sum(relatives) / len(relatives), "other methods")
        return Speed(self._guesses.get(job.column, GUESS[self._device]) / self._at_once, "guess")

    def seconds(self, job: Job) -> float:
        """How long a job is expected to take from where it stands."""
        return START_SECONDS + (job.steps - job.saved_step()) / self.of(job).steps_per_second


@dataclass(frozen=True)
class Budget:
    """The time that a runner has, up to a `deadline` on the clock of time.monotonic, and what is known about speed."""

    speeds: Speeds
    deadline: float

    @property
    def seconds_left(self) -> float:
        """Until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def fits(self, job: Job) -> bool:
        """Whether a job that starts now is expected to end in time."""
        return self.speeds.seconds(job) <= self.seconds_left

    @property
    def allows_a_start(self) -> bool:
        """Whether a job that starts now would come to its first step."""
        return self.seconds_left > START_SECONDS

    def plan(self, jobs: Sequence[Job], at_once: int) -> tuple[list[Job], list[Job]]:
        """Which jobs are expected to fit, and which are not."""
        return what_fits([(job, self.speeds.seconds(job)) for job in jobs], at_once, self.seconds_left)


def _kind(job: Job) -> tuple[str, str]:
    """Jobs that are expected to be equally fast."""
    return job.recipe, job.config.model.name


def what_fits(durations: Sequence[tuple[Item, float]], at_once: int, seconds: float) -> tuple[list[Item], list[Item]]:
    """Those that end in time when `at_once` are taken in order, each as soon as a worker is free, and the others.

    One that would not end in time is passed over; a shorter one behind it may still fit.
    """
    free_at = [0.0] * at_once
    fitting, left = [], []
    for item, duration in durations:
        first = free_at.index(min(free_at))
        if free_at[first] + duration <= seconds:
            free_at[first] += duration
            fitting.append(item)
        else:
            left.append(item)
    return fitting, left
