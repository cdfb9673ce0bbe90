"""Workers that die or freeze end the work with an error that says so, never a wait without end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from transnormer.data import workers
from transnormer.errors import TransNormerError


def double(number: int) -> int:
    return 2 * number


def large(number: int) -> bytes:
    return bytes(2**26)


def stop_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return number


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.reliability("R17")
def test_a_frozen_worker_is_named_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(workers.in_order(double, range(9), 2)) == [*range(0, 18, 2)]
    monkeypatch.setattr(workers, "PATIENCE", 10)
    with pytest.raises(TransNormerError, match=r"no result for 10 s: .* processes \d+, \d+, is frozen") as caught:
        list(workers.in_order(stop_at_three, range(9), 2))
    pids = [int(word.strip(",")) for word in caught.value.message.split() if word.strip(",").isdecimal()][1:]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline


@pytest.mark.reliability("R17")
def test_a_killed_worker_is_said() -> None:
    with pytest.raises(TransNormerError, match="a worker process was killed"):
        list(workers.in_order(die_at_three, range(9), 2))


def test_a_reader_that_stops_early_does_not_wait_for_a_frozen_worker() -> None:
    made = workers.in_order(stop_at_three, range(9), 2)
    assert [next(made), next(made), next(made)] == [0, 1, 2]
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 60


def test_a_reader_that_stops_early_does_not_wait_for_the_rest_of_a_result() -> None:
    for _ in range(3):
        made = workers.in_order(large, range(100), 2)
        next(made)
        closing = threading.Thread(target=made.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
