"""How long each job is expected to take: which are started first, and which can be finished in a given time."""

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
    well these jobs run side by side. `guesses` are steps per second of one job alone, by column; `relative` is how fast
    rows are beside that.
    """

    def __init__(
        self,
        records: Iterable[Record],
        device: str,
        hardware: dict[str, Any],
        at_once: int,
        guesses: Mapping[str, float],
        relative: Mapping[str, float],
    ) -> None:
        self._device, self._hardware, self._at_once = device, hardware, at_once
        self._guesses, self._relative = guesses, relative
        self._recorded: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, str], tuple[float, float]] = {}  # the rate, and how many times the guess that is
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
                self._seen[_kind(each.job)] = each.rate, each.rate / self._guess(each.job)

    def of(self, job: Job) -> Speed:
        """The best that is known about a job."""
        key = _kind(job)
        if key in self._recorded:
            return Speed(self._recorded[key], "recorded")
        if key in self._seen:
            return Speed(self._seen[key][0], "running")
        times = [times for (recipe, _), (_, times) in self._seen.items() if recipe == job.recipe]
        if times:
            return Speed(self._guess(job) * sum(times) / len(times), "other methods")
        return Speed(self._guess(job), "guess")

    def seconds(self, job: Job) -> float:
        """How long a job is expected to take from where it stands."""
        return self._seconds(job, job.steps - job.saved_step())

    def longest_first(self, jobs: Iterable[Job]) -> list[Job]:
        """The order in which jobs are started: long ones at the end would keep one worker busy and the others idle.

        Those that others begin with stay before all others, and every seed before the next: one whole table is worth
        more than a part of several. A job counts with its whole length, and one that was stopped keeps its turn. Where
        nothing is known that tells jobs apart, their order stays.
        """
        turns: dict[tuple[bool, int], int] = {}
        keyed = []
        for job in jobs:
            turn = turns.setdefault((job.home is None, job.config.seed), len(turns))
            keyed.append((turn, -self._seconds(job, job.steps), job))
        return [job for _, _, job in sorted(keyed, key=lambda each: each[:2])]

    def _seconds(self, job: Job, steps: int) -> float:
        return START_SECONDS + steps / self.of(job).steps_per_second

    def _guess(self, job: Job) -> float:
        alone = self._guesses.get(job.column, GUESS[self._device]) * self._relative.get(job.row, 1.0)
        return alone / self._at_once


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
