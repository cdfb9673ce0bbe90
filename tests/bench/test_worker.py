"""A process for work that may break it: results and errors come back, what hangs or dies is given up."""

from __future__ import annotations

import operator
import os
import time

import pytest

from transnormer.bench.worker import Worker, WorkerLost


def test_results_and_errors_come_back_and_the_process_is_kept():
    with Worker() as worker:
        assert worker.run(operator.add, 2, 3) == 5
        first = worker.run(os.getpid)
        assert first != os.getpid()
        with pytest.raises(ValueError, match="invalid literal"):
            worker.run(int, "five")
        assert worker.run(os.getpid) == first
        worker.restart()
        assert worker.run(os.getpid) != first


def test_what_takes_too_long_or_dies_is_given_up():
    with Worker() as worker:
        worker.run(os.getpid)
        with pytest.raises(WorkerLost, match="took more than 1 s"):
            worker.run(time.sleep, 3600, limit=1)
        with pytest.raises(WorkerLost, match="died with exit code 7"):
            worker.run(os._exit, 7)
        assert worker.run(operator.add, 1, 1) == 2


def test_leaving_ends_the_process():
    with Worker() as worker:
        process = worker.run(os.getpid)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
