"""Jobs, several at once, until all are done, time is up, or a signal asks to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from transnormer.errors import Preempted
from transnormer.experiments.budget import Budget
from transnormer.experiments.display import JobDisplay, JobStatus, State
from transnormer.experiments.job import Job
from transnormer.experiments.record import Record
from transnormer.experiments.worker_pool import Worker, WorkerPool
from transnormer.signals import STOP_SIGNALS, CountedSignals

_PAUSE = 0.2  # seconds between two looks at the processes


@dataclass
class Scheduler:
    """All jobs in the order in which they are shown, and in `queue` those to run in the order to start them in.

    `on_finished` keeps the result of a job and returns its record; without a `budget` there is time for all.
    """

    statuses: list[JobStatus]
    queue: list[JobStatus]
    pool: WorkerPool
    display: JobDisplay
    on_finished: Callable[[Worker], Record]
    budget: Budget | None = None
    signals: CountedSignals = field(default_factory=CountedSignals)
    _told: int = 0  # how often the processes have been told to stop

    def run(self) -> None:
        """Until nothing runs and nothing can be started any more; jobs that fail do not stop the others."""
        with self.signals, self.pool:
            while True:
                self._stop_if_asked()
                if not self._told:
                    self._fill_the_pool()
                self.display.update(self.statuses)
                if not self.pool.running:
                    return
                time.sleep(_PAUSE)
                for ended in self.pool.poll():
                    self._take(ended)
                if self.budget:
                    self.budget.speeds.see(self.pool.running)

    def those(self, *states: State) -> list[Job]:
        """The jobs in these states."""
        return [status.job for status in self.statuses if status.state in states]

    @property
    def time_is_up(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.budget.seconds_left <= 0

    @property
    def _running(self) -> str:
        return ", ".join(worker.job.name for worker in self.pool.running) or "nothing"

    def _stop_if_asked(self) -> None:
        """Pass every signal on once; the end of the time is one of them, but never the second."""
        if self._told < self.signals.count:
            name = self.signals.received.name if self.signals.received else "a signal"
            how = "saving" if self._told == 0 else "ending"
            self.display.say(f"{name}: {how} what runs: {self._running}")
        elif self._told == 0 and self.time_is_up:
            if self.pool.running:
                self.display.say(f"time is up: saving what runs: {self._running}")
        else:
            return
        self._told += 1
        self.pool.stop()

    def _parent_of(self, status: JobStatus) -> JobStatus | None:
        parent = status.job.parent
        return next((each for each in self.statuses if parent and each.job.identity == parent.identity), None)

    def _is_ready(self, status: JobStatus) -> bool:
        """Whether a job is waiting for nothing but a place; one whose parent cannot finish is not run."""
        if status.state is not State.waiting:
            return False
        parent = self._parent_of(status)
        if parent and parent.state in (State.failed, State.blocked):
            status.state = State.blocked
            self.display.say(f"{status.job.name}: not run, {parent.job.name}, with whose weights it begins, failed")
        return status.state is State.waiting and (parent is None or parent.state is State.finished)

    def _fill_the_pool(self) -> None:
        while not self.pool.is_full and (status := self._next()):
            self.pool.start(status.job)
            status.state, status.running = State.running, self.pool.running[-1]
            how = "resumed" if status.running.first_step else "started"
            self.display.say(f"{status.job.name}: {how}")

    def _next(self) -> JobStatus | None:
        """The first waiting job that is expected to end in time; if there is none, the first that can make a step."""
        waiting = [status for status in self.queue if self._is_ready(status)]
        budget = self.budget
        if budget is None:
            return next(iter(waiting), None)
        fitting = (status for status in waiting if budget.fits(status.job))
        return next(fitting, waiting[0] if waiting and budget.allows_a_start else None)

    def _take(self, ended: Worker) -> None:
        """Note how a job ended; a process that is ended while it still loads its packages has nothing to save."""
        status = next(status for status in self.statuses if status.job is ended.job)
        status.running = None
        name, code = ended.job.name, ended.process.returncode
        assert code is not None, "a worker that has ended"
        if code == 0:
            status.record, status.state = self.on_finished(ended), State.finished
            self.display.say(f"{name}: {status.record.score_in_words} after {ended.seconds / 60:.1f} min")
        elif code == Preempted.exit_code or (self._told and _is_by_signal(code)):
            status.state = State.stopped
            saved = ended.job.saved_step()
            self.display.say(f"{name}: stopped, " + (f"saved after step {saved:,}" if saved else "nothing to save yet"))
        else:
            status.state = State.failed
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            words = "\n".join(f"    {line}" for line in ended.job.last_words())
            self.display.say(f"{name}: failed ({how}); the end of {ended.job.log_file}:\n{words}")


def _is_by_signal(code: int) -> bool:
    return any(code in (-number, 128 + number) for number in STOP_SIGNALS)
