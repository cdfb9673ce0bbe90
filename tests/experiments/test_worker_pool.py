"""Processes side by side: what each of them is given, and what becomes of them when something goes wrong here."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from reproduce_case import ReproduceCase

from transnormer.config.load import load_config
from transnormer.environment import hardware
from transnormer.experiments import executor, worker_pool
from transnormer.experiments import job as jobs
from transnormer.experiments.job import Job
from transnormer.experiments.worker_pool import WorkerPool

SCRIPT = """
import os, signal, sys

def handle(number, frame):
    os.write(1, b"told\\n")  # print may be what the signal interrupts, and cannot be entered twice
    if "stubborn" not in os.environ:
        sys.exit(75)

signal.signal(signal.SIGTERM, handle)
print(os.getsid(0) == os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ.get("EXTRA"), flush=True)
while "ENDS" not in os.environ:
    signal.pause()
1 / int(os.environ["ENDS"])
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Job]:
    """Jobs whose processes say what they were given, wait, and say when they are told to stop."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(jobs, "PROGRAM", (sys.executable, "-I", str(script)))
    config = load_config("lra/text")
    return lambda method: Job(
        f"text-{method}-42", method, "text", tmp_path / f"text-{method}-42", config, ("lra/text",)
    )


def wait_for_words(job: Job) -> list[str]:
    deadline = time.monotonic() + 300
    while not (job.log_file.is_file() and job.log_file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return job.log_file.read_text().split()


def test_processes_have_their_own_session_and_share_the_cores(
    make: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("ENDS", "1")
    (first, second) = make("t2"), make("vanilla")
    with WorkerPool(3, {"EXTRA": "more"}) as running:
        running.start(first)
        assert wait_for_words(first) == ["True", "2", "more"]
        running.start(second)
        assert not running.is_full
        ended = []
        while running.running:
            ended += running.poll()
    assert [(each.process.returncode, each.first_step) for each in ended] == [(0, 0)] * 2
    with WorkerPool(100, {}) as running:
        running.start(second)
        while running.running:
            running.poll()
    assert wait_for_words(second) == ["True", "2", "more", "True", "1", "None"], (
        "one thread each at the least; logs grow"
    )


def broken_off(job: Job, environment: dict[str, str]) -> int:
    """The exit code of a job that ran when something went wrong here."""
    pool = WorkerPool(1, environment)

    def go_wrong() -> None:
        with pool:
            pool.start(job)
            wait_for_words(job)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go_wrong()
    return pool.running[0].process.returncode


def test_an_error_here_saves_what_runs(make: Callable[[str], Job]) -> None:
    job = make("t2")
    assert broken_off(job, {}) == 75
    assert wait_for_words(job)[-1] == "told"


def test_a_process_that_does_not_end_is_ended(make: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """It never ends by itself, so that no patience is too short."""
    monkeypatch.setattr(worker_pool, "_PATIENCE", 0.3)
    assert broken_off(make("t2"), {"stubborn": "1"}) == -signal.SIGKILL


def test_at_once_counts_the_most_that_ran_together(make: Callable[[str], Job]) -> None:
    with WorkerPool(3, {}) as running:
        for method in ("t2", "vanilla", "t1"):
            running.start(make(method))
        assert running.is_full
        first = running.running[0]
        wait_for_words(first.job)
        first.process.terminate()
        first.process.wait()
        (ended,) = running.poll()
        assert (ended.process.returncode, ended.at_once) == (75, 3)
        assert not running.is_full


def test_jobs_on_a_gpu_get_what_they_need_to_share_it(
    case: ReproduceCase, make: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU and several at once; the service ends with the runner, although a job fails."""
    happened: list[Any] = []

    @contextmanager
    def shared(folder: Path, say: Callable[[str], None]) -> Any:
        happened.append(folder)
        yield {"EXTRA": "shared"}
        happened.append("ended")

    monkeypatch.setattr(executor, "shared_gpu", shared)
    monkeypatch.setattr(executor.LocalExecutor, "device_of", lambda *_: "cuda")
    monkeypatch.setenv("ENDS", "0")
    assert case.run("--jobs", "1") == 1
    assert happened == []
    assert case.run() == 1
    assert happened == [case.runs / ".mps", "ended"]
    assert "text-t2-42: failed (exit code 1)" in case.out
    assert "ZeroDivisionError: division by zero" in case.out
    assert "shared" in (case.runs / "text-vanilla-42.log").read_text()


def test_the_names_of_the_hardware_are_those_that_records_have() -> None:
    assert executor.hardware_of("cuda") == hardware()
