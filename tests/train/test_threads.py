"""How many threads a run computes with: by what the machine has to spare, and the same ones when it goes on."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tiny_run import tiny_config, tiny_store

from transnormer.train import threads
from transnormer.train.run_folder import RunFolder
from transnormer.train.threads import choose_threads, quota


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """machine(cores, busy) is where the choice is made; nobody has set a variable."""

    def pretend(cores: int, busy: float, cpu_max: str = "max 100000") -> None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(psutil, "cpu_percent", lambda interval: 100 * busy / cores)
        (tmp_path / "cpu.max").write_text(cpu_max)
        monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")

    return pretend


@pytest.mark.parametrize(
    ("cores", "busy", "default", "chosen"),
    [(8, 0.1, 4, 4), (8, 5.0, 4, 3), (2, 2.0, 2, 1), (2, 0.2, 2, 2), (1, 0.0, 1, 1), (64, 20.0, 32, 32)],
)
def test_as_many_as_cores_are_idle(machine, cores: int, busy: float, default: int, chosen: int) -> None:
    machine(cores, busy)
    assert choose_threads(None, None, default).number == chosen


def test_a_container_has_the_cores_of_its_quota(machine) -> None:
    """What is busy beside it is the machine's, of which it has a part."""
    machine(64, 30.0, "200000 100000")
    assert choose_threads(None, None, 32) == threads.Threads(2, "of 64 cores 2 may be used")
    assert quota("max 100000") == math.inf


def test_what_was_computed_a_moment_ago_does_not_count(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this process or by the installation before it: the load average would have it."""
    machine(8, 0.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (8.0, 8.0, 8.0))
    assert choose_threads(None, None, 4).number == 4


def test_who_decides(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key, then the environment, which torchrun sets, then the run that goes on, then the machine."""
    machine(8, 7.0)
    assert choose_threads(None, 5, 8) == threads.Threads(5, "as the run began")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(None, 5, 2) == threads.Threads(2, "OMP_NUM_THREADS")
    assert choose_threads(3, 5, 2) == threads.Threads(3, "train.threads")


RUN = """
import sys
from pathlib import Path
import psutil
psutil.cpu_percent = lambda interval: float(sys.argv[2])
from tiny_run import stop_at, tiny_config
from transnormer.errors import Preempted
from transnormer.train.loop import resume, train
import pytest, torch
out = Path(sys.argv[1])
if out.exists():
    resume(out, show=False)
else:
    patch = pytest.MonkeyPatch()
    if len(sys.argv) > 4:
        stop_at(patch, int(sys.argv[4]))
    try:
        train(tiny_config(Path(sys.argv[3])), out, show=False)
    except Preempted:
        pass
print(torch.get_num_threads())
"""


def in_a_process(out: Path, busy: float, *arguments: str | Path) -> int:
    """The threads that a run had in a process of its own, on a machine that is busy to so many percent."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(out), str(busy), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
    )
    return int(done.stdout.split()[-1])


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core, one thread")
def test_a_resumed_run_has_the_threads_it_began_with(tmp_path: Path) -> None:
    """However busy the machine is by then: with others it would make its sums in another order."""
    store = tiny_store(tmp_path)
    began = in_a_process(tmp_path / "run", 100.0, store, "5")
    assert began == 1
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["threads"] == 1
    assert in_a_process(tmp_path / "run", 0.0) == 1


def test_a_damaged_record_of_the_machine_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text("{")
    assert RunFolder(tmp_path).recorded_threads() is None
    (tmp_path / "environment.json").write_text('{"threads": -1}')
    assert RunFolder(tmp_path).recorded_threads() is None


def test_a_config_that_says_nothing_about_threads_has_no_such_key(tmp_path: Path) -> None:
    """Runs are known by the hash of their config."""
    assert "threads" not in tiny_config(tmp_path).model_dump()["train"]
    assert tiny_config(tmp_path, train__threads=2).model_dump()["train"]["threads"] == 2
