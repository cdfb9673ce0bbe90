"""Several jobs at once: each a process of its own, here or elsewhere, started, watched, stopped so that it saves."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from transnormer.experiments.job import Job

_PATIENCE = 60.0  # seconds that a process may take to save once something went wrong here
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Process(Protocol):
    """What is asked of the process of a job, wherever it runs; subprocess.Popen is one."""

    @property
    def returncode(self) -> int | None:
        """None as far as is known; -n if signal n ended it."""

    def poll(self) -> int | None:
        """Look whether it has ended."""

    def send_signal(self, sig: int) -> None:
        """SIGTERM: it saves and ends; a second one ends it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; raises subprocess.TimeoutExpired if that takes longer."""

    def kill(self) -> None:
        """End it without a word."""


Launch = Callable[[Job, Mapping[str, str]], Process]  # starts or resumes a job in an environment with these variables


@dataclass
class Worker:
    """The process of a job. `at_once` is the most jobs that ran beside it, itself counted."""

    job: Job
    process: Process
    began: float
    first_step: int
    at_once: int = 1
    step: int | None = None
    seen: tuple[float, int] | None = None  # when a step was first found in the journal, and which
    seconds: float = 0.0  # of wall time, when it was last looked at

    def look(self) -> None:
        """See in the journal how far it has come."""
        logged = self.job.logged_step()
        if logged is None or logged < self.first_step:
            return
        self.step = logged
        if self.seen is None or logged < self.seen[1]:  # a rewind makes steps anew
            self.seen = (time.monotonic(), logged)

    @property
    def rate(self) -> float | None:
        """Steps per second of wall time, evaluations and checkpoints included, once two lines have been seen."""
        if self.seen is None or self.step is None or self.step <= self.seen[1]:
            return None
        return (self.step - self.seen[1]) / (time.monotonic() - self.seen[0])

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at this rate."""
        return None if self.rate is None or self.step is None else (self.job.steps - self.step) / self.rate


class WorkerPool:
    """Context manager: at most `size` processes; should the body raise, all of them are told to save and end.

    They share the cores evenly. Each is in a session of its own, so that Ctrl-C reaches only this process, which passes
    it on: a run that hears of it twice would end without saving.
    """

    def __init__(self, size: int, environment: Mapping[str, str], launch: Launch | None = None) -> None:
        self.size = size
        self.running: list[Worker] = []
        self._launch = launch or launch_here
        threads = str(max(1, (os.cpu_count() or 1) // size))
        self._environment = {"OMP_NUM_THREADS": threads, **environment}

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for worker in self.running:
            try:
                worker.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    @property
    def is_full(self) -> bool:
        """Whether another job would have to wait."""
        return len(self.running) >= self.size

    def start(self, job: Job) -> None:
        """Start or resume a job; its output is appended to its log."""
        process = self._launch(job, self._environment)
        self.running.append(Worker(job, process, time.monotonic(), job.saved_step()))
        for worker in self.running:
            worker.at_once = max(worker.at_once, len(self.running))

    def poll(self) -> list[Worker]:
        """Those that have ended since the last call."""
        for worker in self.running:
            worker.look()
            worker.process.poll()
            worker.seconds = time.monotonic() - worker.began
        ended = [worker for worker in self.running if worker.process.returncode is not None]
        self.running = [worker for worker in self.running if worker.process.returncode is None]
        return ended

    def stop(self) -> None:
        """SIGTERM to all: they save at the step boundary; a second one ends them at once."""
        for worker in self.running:
            worker.process.send_signal(signal.SIGTERM)


def launch_here(job: Job, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The process of a job on this machine."""
    with job.log_file.open("ab") as log:
        return subprocess.Popen(
            job.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_end_with_parent if _LIBC else None,
        )


def _end_with_parent() -> None:
    """In the child: be told to save and end should the runner be killed, so that nobody trains on unobserved."""
    if _LIBC:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
