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
        trials = self.experiment.trials(self.selection.setup)
        if trials is None:
            jobs = plan(self.experiment, self.selection, self.runs)
            self._start(self.experiment, jobs, self.runs, self.results, self.budget_minutes, display)
        else:
            self._run_both(trials, display)

    def _run_both(self, trials: Trials, display: JobDisplay) -> None:
        began = time.monotonic()
        asked = trials.selection(self.selection)
        self._check_finals(trials)
        home = trials.folder(self.selection.setup)
        runs, results = (self.experiment.place_of(home, folder) for folder in (self.runs, self.results))
        display.say("trials:")
        failed: JobsFailed | None = None
        try:
            self._start(trials, plan(trials, asked, runs), runs, results, self.budget_minutes, display)
        except JobsFailed as error:  # those of one row and column keep none of the others from going on
            failed = error
        choices = trials.choices(self.selection, results)
        _tell(choices, display.say)
        waiting = len(self.selection.rows) * len(self.selection.columns) - len(choices)
        display.say(f"full runs: {waiting} rows and columns wait for trials" if waiting else "full runs:")
        left = self.budget_minutes and self.budget_minutes - (time.monotonic() - began) / 60
        if choices and (left is None or left > 0):
            jobs = plan(self.experiment, self.selection, self.runs, choices)
            self._start(self.experiment, jobs, self.runs, self.results, left, display)
        if failed:
            raise failed

    def _check_finals(self, trials: Trials) -> None:
        """Whatever is wrong with full jobs, and with what lies in their folder, before hours go into trials."""
        jobs = plan(self.experiment, self.selection, self.runs, trials.first_options(self.selection))
        if conflict := self.experiment.conflict(read_records(self.results), jobs):
            raise ConfigError(f"--results: {self.results} {conflict}", hint="choose another --results")

    def _start(
        self,
        experiment: Experiment,
        jobs: list[Job],
        runs: Path,
        results: Path,
        minutes: float | None,
        display: JobDisplay,
    ) -> None:
        runner = Runner(experiment, jobs, runs, results, self.workers, minutes, self.executor)
        if self.rehearse:
            runner.rehearse(display.say)
        else:
            runner.run(display)


def _tell(choices: dict[tuple[str, str], Choice], say: Callable[[str], None]) -> None:
    for (row, column), choice in choices.items():
        scores = ", ".join(f"{name} {score:.2f}" for name, score in choice.scores.items())
        say(f"{row} on {column} chose {choice.name} (validation: {scores})")
