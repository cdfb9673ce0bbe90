"""A table from the first job to the last: where settings are chosen by trials, these first, then the full jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from transnormer.errors import ConfigError, JobsFailed
from transnormer.experiments.display import JobDisplay
from transnormer.experiments.executor import Executor, LocalExecutor
from transnormer.experiments.experiment import Experiment, Selection, plan
from transnormer.experiments.job import Choice, Job
from transnormer.experiments.record import read_records
from transnormer.experiments.runner import Runner
from transnormer.experiments.trials import Trials


@dataclass(frozen=True)
class Stages:
    """What a person asked for; each stage has its own folders, and both share the time."""

    experiment: Experiment
    selection: Selection
    runs: Path
    results: Path
    workers: int | None = None
    budget_minutes: float | None = None
    rehearse: bool = False
    executor: Executor = field(default_factory=LocalExecutor)

    def run(self, display: JobDisplay) -> None:
        """All of it, or as much as time allows; the same command goes on."""
        began = time.monotonic()
        first, trials = self.first(), self._trials
        if trials is None:
            self._start(first, display)
            return
        display.say("trials:")
        failed: JobsFailed | None = None
        try:
            self._start(first, display)
        except JobsFailed as error:  # those of one row and column keep none of the others from going on
            failed = error
        choices = trials.choices(self.selection, first.results)
        _tell(choices, display.say)
        waiting = len(self.selection.rows) * len(self.selection.columns) - len(choices)
        display.say(f"full runs: {waiting} rows and columns wait for trials" if waiting else "full runs:")
        left = self.budget_minutes and self.budget_minutes - (time.monotonic() - began) / 60
        if choices and (left is None or left > 0):
            jobs = plan(self.experiment, self.selection, self.runs, choices)
            self._start(self._runner(self.experiment, jobs, self.runs, self.results, left), display)
        if failed:
            raise failed

    def plan(self) -> list[Job]:
        """The jobs of the first stage; raises what is wrong with those of any."""
        trials = self._trials
        if trials is None:
            return plan(self.experiment, self.selection, self.runs)
        asked = trials.selection(self.selection)
        plan(self.experiment, self.selection, self.runs, trials.first_options(self.selection))
        return plan(trials, asked, self._place_of(trials, self.runs))

    def first(self) -> Runner:
        """What runs the first stage; made anew for each use, since its time begins with it.

        Raises what is wrong with the jobs of any stage, and with what lies in their folders, before hours go into it.
        """
        jobs, trials = self.plan(), self._trials
        if trials is None:
            return self._runner(self.experiment, jobs, self.runs, self.results, self.budget_minutes)
        if conflict := self.experiment.conflict(read_records(self.results), jobs):  # trials have the same recipes
            raise ConfigError(f"--results: {self.results} {conflict}", hint="choose another --results")
        runs, results = (self._place_of(trials, folder) for folder in (self.runs, self.results))
        return self._runner(trials, jobs, runs, results, self.budget_minutes)

    @property
    def _trials(self) -> Trials | None:
        return self.experiment.trials(self.selection.setup)

    def _place_of(self, trials: Trials, folder: Path) -> Path:
        return self.experiment.place_of(trials.folder(self.selection.setup), folder)

    def _runner(
        self, experiment: Experiment, jobs: list[Job], runs: Path, results: Path, minutes: float | None
    ) -> Runner:
        return Runner(experiment, jobs, runs, results, self.workers, minutes, self.executor)

    def _start(self, runner: Runner, display: JobDisplay) -> None:
        if self.rehearse:
            runner.rehearse(display.say)
        else:
            runner.run(display)


def _tell(choices: dict[tuple[str, str], Choice], say: Callable[[str], None]) -> None:
    for (row, column), choice in choices.items():
        scores = ", ".join(f"{name} {score:.2f}" for name, score in choice.scores.items())
        say(f"{row} on {column} chose {choice.name} (validation: {scores})")
