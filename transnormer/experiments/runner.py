"""The jobs of an experiment, several at once, their records, and the page that shows them.

A runner can be stopped and started again at any time: what is finished is skipped, what has a checkpoint is resumed,
and what was made with other settings is an error before anything starts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from transnormer.data.open_store import Store
from transnormer.errors import ConfigError, DataError, JobsFailed, Preempted, RunInUseError, TransNormerError
from transnormer.experiments.budget import Budget, Speeds
from transnormer.experiments.display import JobDisplay, JobStatus, State
from transnormer.experiments.executor import Executor, LocalExecutor
from transnormer.experiments.experiment import Experiment
from transnormer.experiments.faults import Faults
from transnormer.experiments.job import Job
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.recording import check_record, record_of
from transnormer.experiments.scheduler import Scheduler
from transnormer.experiments.worker_pool import Worker
from transnormer.files import disk_errors, write_text
from transnormer.signals import Terminated
from transnormer.tasks.registry import build_task, find_data
from transnormer.train.run_folder import RunFolder

_PATIENCE = 60.0  # seconds that processes of a killed runner may take to save


@dataclass
class Runner:
    """Jobs that have been checked against what lies in `runs` and `results`; nothing is written yet.

    A job whose hash a record in `results` has is finished, whichever table asked for it.
    """

    experiment: Experiment
    jobs: list[Job]
    runs: Path
    results: Path
    workers: int | None = None
    budget_minutes: float | None = None
    executor: Executor = field(default_factory=LocalExecutor)

    def __post_init__(self) -> None:
        began = time.monotonic()
        self._check_options()
        self.jobs = list({job.identity: job for job in reversed(self.jobs)}.values())[::-1]
        self.device = self.executor.device_of(self.jobs)
        self.found = found = read_records(self.results)
        if conflict := self.experiment.conflict(found, self.jobs):
            raise ConfigError(f"--results: {self.results} {conflict}", hint="choose another --results")
        self.records = _of_jobs(found, self.jobs)
        self.stores: dict[str, Store] = {}
        faults = Faults()
        self._check_what_is_there(self.jobs, faults)
        self.todo = [job for job in self.jobs if job.identity not in self.records and job.result() is None]
        self._add_parents(faults)
        self._check_what_is_to_run(faults)
        self._check_neighbours(faults)
        faults.raise_if_any(len(self.jobs))
        self.at_once = max(1, min(self.executor.places(self.device, self.workers), len(self.todo)))
        known = (self.experiment.guesses, self.experiment.relative_speeds)
        guesses, relative = (by_device.get(self.device, {}) for by_device in known)
        speeds = Speeds(found, self.device, self.executor.hardware(self.device), self.at_once, guesses, relative)
        self.todo = speeds.longest_first(self.todo)
        self.budget = None if self.budget_minutes is None else Budget(speeds, began + 60 * self.budget_minutes)

    def run(self, display: JobDisplay) -> None:
        """Run what is not finished, write the records and the page; raises at the end if something went wrong.

        A runner whose time is up has done what it was asked for: that is no error.
        """
        starts = self._announce(display.say)
        for folder in self._folders():
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._be_alone(stack)
            _wait_for_writers(self.todo, display.say)
            self._prepare(starts, display.say)
            self._record_what_is_finished()
            self._write_page()
            pool = stack.enter_context(
                self.executor.pool(self.device, self.workers, self.at_once, self.runs, display.say)
            )
            found = [(job, None if job in self.todo else self.records.get(job.identity)) for job in self.jobs]
            statuses = [JobStatus(job, State.finished if record else State.waiting, record) for job, record in found]
            status_of = {status.job.identity: status for status in statuses}
            queue = [status_of[job.identity] for job in self.todo]
            scheduler = Scheduler(statuses, queue, pool, display, self._on_finished, self.budget)
            with display:
                scheduler.run()
        self._conclude(scheduler, display.say)

    def rehearse(self, say: Callable[[str], None]) -> None:
        """Say what would run, by which commands; nothing is written."""
        self._announce(say)
        for job in self.todo:
            say(f"{job.name}: {job.command_in_words()}")

    def _announce(self, say: Callable[[str], None]) -> bool:
        """What is finished and what is to be done; whether there is time to start a job."""
        done = len(self.jobs) - len(self.todo)
        say(f"jobs: {done} of {len(self.jobs)} finished, {len(self.todo)} to run, {self.at_once} at once")
        self._name_records(say)
        return self._plan(say)

    def _check_options(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--jobs is {self.workers}; at least one job must run", hint="leave it out, or --jobs 1")
        if self.budget_minutes is not None and not self.budget_minutes > 0:
            raise ConfigError(
                f"--budget-minutes is {self.budget_minutes:g}", hint="give a number above 0, or leave it out"
            )
        for option, folder in (("--runs", self.runs), ("--results", self.results)):
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"{option}: {folder} is a file, not a folder", hint=f"choose another {option}")

    def _add_parents(self, faults: Faults) -> None:
        """Before the jobs that are to run, those whose weights they begin with; a record alone has no weights."""
        parents = list({job.parent.identity: job.parent for job in self.todo if job.parent}.values())
        for job in parents:
            if job.result():
                self.records |= _of_jobs(read_records(self._results_of(job)), [job])
        self._check_what_is_there(parents, faults)
        self.todo = [*(job for job in parents if job.result() is None), *self.todo]
        self.jobs = [*parents, *self.jobs]

    def _results_of(self, job: Job) -> Path:
        """Where the record of a job goes."""
        return self.experiment.place_of(job.home, self.results) if job.home else self.results

    def _check_what_is_there(self, jobs: Sequence[Job], faults: Faults) -> None:
        """Data that are prepared, and runs and records of earlier runners."""
        self.stores |= _open_stores([job for job in jobs if job.has_store], faults)
        for job in jobs:
            with faults.of([job.name]):
                job.check_folder()
                store = self.stores.get(job.data_key)
                if record := self.records.get(job.identity):
                    check_record(record, job, self._results_of(job) / f"{record.name}.json", store)
                elif store and job.result():
                    _check_data(job, store)

    def _check_what_is_to_run(self, faults: Faults) -> None:
        """What all jobs ask of this machine, and of the data that are still to be made."""
        if self.todo:
            with faults.of(job.name for job in self.todo):
                self.executor.check(self.todo[0].config.train, self.device)
        for jobs in _by_data(job for job in self.todo if not job.has_store).values():
            with faults.of(job.name for job in jobs):
                find_data(jobs[0].config)

    def _check_neighbours(self, faults: Faults) -> None:
        """Records of two data sets must not come to stand in one column, nor be written into one table again."""
        for job in self.jobs:
            record = self.records.get(job.identity)
            data = record.data if record else self.stores.get(job.data_key)
            others = [each for each in self.found if data and each.recipe == job.recipe]
            if data and (other := next((each for each in others if each.data.digest != data.digest), None)):
                with faults.of([job.name]):
                    raise ConfigError(
                        f"{self.results / other.name}.json, in the same column, was made from other data: "
                        f"its digest is {other.data.digest[:12]}, not {data.digest[:12]}",
                        hint="use the same data, or choose another --results",
                    )

    def _name_records(self, say: Callable[[str], None]) -> None:
        """Whose records stand for jobs: in a clone of the repository they are not runs of this machine."""
        if not self.records:
            return
        commits = Counter(record.commit for record in self.records.values())
        origins = [
            f"of {f'commit {_shortened(commit)}' if commit else 'an unknown commit'} ({count})"
            for commit, count in commits.items()
        ]
        say(
            f"{len(self.records)} of the finished are records in {self.results}, {', '.join(origins)}; "
            "to run them anew, give other folders: --results DIR --runs DIR"
        )

    def _plan(self, say: Callable[[str], None]) -> bool:
        """Whether there is time to start a job; says which fit into the budget and which do not, and how it knows."""
        if self.budget is None:
            return True
        fitting, left = self.budget.plan(self.todo, self.at_once)
        say(f"budget of {self.budget_minutes:g} min: {len(fitting)} jobs are expected to fit, {len(left)} are not")
        speeds = self.budget.speeds
        for word, jobs in (("fits", fitting), ("does not fit", left)):
            for job in jobs:
                known_from = speeds.of(job).known_from
                say(f"  {word}: {job.name}, about {speeds.seconds(job) / 60:.1f} min ({known_from})")
        if left and self.budget.allows_a_start:
            say("time that is left goes to the first of those that do not fit; they are stopped with a checkpoint")
        return self.budget.allows_a_start

    def _folders(self) -> list[Path]:
        """All that is written to."""
        return list(dict.fromkeys(each for job in self.jobs for each in (self._results_of(job), job.folder.parent)))

    def _be_alone(self, stack: ExitStack) -> None:
        try:
            for folder in dict.fromkeys(job.folder.parent for job in self.jobs):
                stack.enter_context(RunFolder(folder).lock())
        except RunInUseError as error:
            raise RunInUseError(error.message, hint="wait for it to end, or choose another --runs") from error

    def _prepare(self, starts: bool, say: Callable[[str], None]) -> None:
        """Generate or find all data once, before several jobs ask for them at the same time."""
        unrecorded = [job for job in self.jobs if job.identity not in self.records and job not in self.todo]
        # Should time turn out to be longer than planned, any job may be started.
        for key, jobs in _by_data([*unrecorded, *(self.todo if starts else [])]).items():
            if key in self.stores:
                continue
            task = jobs[0].config.task
            say(f"{task}: looking for its data; where there is none yet, it is generated, which takes minutes")
            faults = Faults()
            try:
                self.stores |= _open_stores(jobs, faults)
            except Terminated:
                raise Preempted(
                    f"stopped while the data of {task} were generated", hint="the same command starts with them"
                ) from None
            self._check_neighbours(faults)
            faults.raise_if_any(len(self.jobs))

    def _record_what_is_finished(self) -> None:
        """A runner that was killed may have left a result that nobody has recorded."""
        for job in self.jobs:
            if job.identity not in self.records and (result := job.result()):
                _check_data(job, self.stores[job.data_key])
                self._record(job, result, None)

    def _record(self, job: Job, result: dict[str, Any], ended: Worker | None) -> Record:
        record = record_of(job, result, self.stores[job.data_key], ended)
        record.write(self._results_of(job))
        if job.home is None and not self.experiment.keeps_weights:
            RunFolder(job.folder).remove_weights()
        self.records[job.identity] = record
        self._write_page()
        return record

    def _write_page(self) -> None:
        write_text(self.experiment.page_file(self.results), self.experiment.page(read_records(self.results)))

    def _on_finished(self, ended: Worker) -> Record:
        result = ended.job.result()
        if result is None:
            raise TransNormerError(f"{ended.job.folder} ended without a result", hint=f"see {ended.job.log_file}")
        record = self._record(ended.job, result, ended)
        if self.budget:
            self.budget.speeds.learn(record)
        return record

    def _conclude(self, scheduler: Scheduler, say: Callable[[str], None]) -> None:
        """Say what there is and what is left; a signal or a failed job decides the exit code."""
        failed, left = scheduler.those(State.failed), scheduler.those(State.waiting, State.stopped)
        blocked = scheduler.those(State.blocked)
        say(f"table: {self.experiment.page_file(self.results)}")
        if left:
            say(f"left: {_names(left)}; the same command goes on with them")
        from_outside = scheduler.those(State.stopped) and not scheduler.time_is_up
        if left and (scheduler.signals.count or from_outside):
            raise Preempted(
                f"stopped with {len(left)} of {len(self.jobs)} jobs left", hint="the same command goes on with them"
            )
        if failed:
            raise JobsFailed(
                f"{len(failed)} of {len(self.jobs)} jobs failed: {_names(failed)}"
                + (f"; not run, for they begin with their weights: {_names(blocked)}" if blocked else ""),
                hint=f"their logs are {self.runs}/*.log; the same command tries them again",
            )


def _of_jobs(records: Sequence[Record], jobs: Sequence[Job]) -> dict[str, Record]:
    """The record of each job by its hash: the one of its name or, where another table gave it one, of its hash."""
    by_name, by_hash = {record.name: record for record in records}, {record.config_hash: record for record in records}
    found = {job.identity: by_name.get(job.name) or by_hash.get(job.identity) for job in jobs}
    return {identity: record for identity, record in found.items() if record}


def _open_stores(jobs: Sequence[Job], faults: Faults) -> dict[str, Store]:
    """All data, if models can be built for them; where there are none yet, they are generated."""
    stores = {}
    for key, same in _by_data(jobs).items():
        with faults.of(job.name for job in same):
            task = build_task(same[0].config)
            with torch.device("meta"):  # raises what a run would, without the memory and the time that it takes
                task.build_model()
            stores[key] = task.store
    return stores


def _check_data(job: Job, store: Store) -> None:
    """Refuse to record a finished run as one of a store that it did not see."""
    try:
        RunFolder(job.folder).require_data(store)
    except DataError as error:
        raise DataError(
            error.message, hint="use the same --data, move the run away, or choose another --runs"
        ) from error


def _shortened(commit: str) -> str:
    """Seven digits of a commit, and that there were changes which it does not have."""
    return commit[:7] + ("-dirty" if commit.endswith("-dirty") else "")


def _wait_for_writers(jobs: Sequence[Job], say: Callable[[str], None]) -> None:
    """Processes of a runner that was killed save and end; others are not waited for any longer than that."""
    deadline = time.monotonic() + _PATIENCE
    for job in jobs:
        if job.is_being_written():
            say(f"{job.name}: waiting for the process that writes {job.folder}")
        while job.is_being_written():
            if time.monotonic() > deadline:
                raise RunInUseError(
                    f"{job.folder} is being written by another process",
                    hint=f"wait for it to end or stop it; its number is in {RunFolder(job.folder).lock_file}",
                )
            time.sleep(0.1)


def _by_data(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Jobs that have the same data."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.data_key, []).append(job)
    return found


def _names(jobs: Iterable[Job]) -> str:
    return ", ".join(job.name for job in jobs)
