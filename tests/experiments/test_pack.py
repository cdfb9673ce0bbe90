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
from grid_case import GridCase

from transnormer.config.load import load_config
from transnormer.environment import hardware
from transnormer.experiments import cells, lra_grid, pack
from transnormer.experiments.cells import Cell
from transnormer.experiments.pack import Pack

SCRIPT = """
import os, signal, sys, time

def handle(number, frame):
    print("told", flush=True)
    if "stubborn" not in os.environ:
        sys.exit(75)

signal.signal(signal.SIGTERM, handle)
print(os.getsid(0) == os.getpid(), os.environ["OMP_NUM_THREADS"], os.environ.get("EXTRA"), flush=True)
time.sleep(float(os.environ.get("SECONDS", 60)))
time.sleep(float(os.environ.get("SECONDS", 60)))
"""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Cell]:
    """Cells whose processes say what they were given, wait, and say when they are told to stop."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(cells, "PROGRAM", (sys.executable, "-I", str(script)))
    config = load_config("lra/text")
    return lambda method: Cell("text", method, 42, tmp_path / f"text-{method}-42", config, ("lra/text",))


def wait_for_words(cell: Cell) -> list[str]:
    deadline = time.monotonic() + 30
    while not (cell.log_file.is_file() and cell.log_file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return cell.log_file.read_text().split()


def test_processes_have_their_own_session_and_share_the_cores(
    make: Callable[[str], Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("SECONDS", "0")
    (first, second) = make("t2"), make("vanilla")
    with Pack(3, {"EXTRA": "more"}) as running:
        running.start(first)
        assert wait_for_words(first) == ["True", "2", "more"]
        running.start(second)
        assert not running.is_full
        ended = []
        while running.running:
            ended += running.poll()
    assert [(each.code, each.first_step) for each in ended] == [(0, 0)] * 2
    with Pack(100, {}) as running:
        running.start(second)
        while running.running:
            running.poll()
    assert wait_for_words(second) == ["True", "2", "more", "True", "1", "None"], (
        "one thread each at the least; logs grow"
    )


def broken_off(cell: Cell, environment: dict[str, str]) -> int:
    """The exit code of a cell that ran when something went wrong here."""
    packed = Pack(1, environment)

    def go_wrong() -> None:
        with packed:
            packed.start(cell)
            wait_for_words(cell)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        go_wrong()
    return packed.running[0].process.returncode


def test_an_error_here_saves_what_runs(make: Callable[[str], Cell]) -> None:
    cell = make("t2")
    assert broken_off(cell, {}) == 75
    assert wait_for_words(cell)[-1] == "told"


def test_a_process_that_does_not_end_is_ended(make: Callable[[str], Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "_PATIENCE", 0.3)
    assert broken_off(make("t2"), {"stubborn": "1"}) == -signal.SIGKILL


def test_at_once_counts_the_most_that_ran_together(make: Callable[[str], Cell]) -> None:
    with Pack(3, {}) as running:
        for method in ("t2", "vanilla", "t1"):
            running.start(make(method))
        assert running.is_full
        first = running.running[0]
        wait_for_words(first.cell)
        first.process.terminate()
        first.process.wait()
        (ended,) = running.poll()
        assert (ended.code, ended.at_once) == (75, 3)
        assert not running.is_full


def test_cells_on_a_gpu_get_what_they_need_to_share_it(
    case: GridCase, make: Callable[[str], Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU and several at once; the service ends with the grid, although a cell fails."""
    happened: list[Any] = []

    @contextmanager
    def shared(folder: Path, say: Callable[[str], None]) -> Any:
        happened.append(folder)
        yield {"EXTRA": "shared"}
        happened.append("ended")

    monkeypatch.setattr(lra_grid, "shared_gpu", shared)
    monkeypatch.setattr(lra_grid, "device_of", lambda _: "cuda")
    monkeypatch.setenv("SECONDS", "bad")
    assert case.run("--jobs", "1") == 1
    assert happened == []
    assert case.run() == 1
    assert happened == [case.runs / ".mps", "ended"]
    assert "text-t2-42: failed (exit code 1)" in case.out
    assert "ValueError: could not convert string to float: 'bad'" in case.out
    assert "shared" in (case.runs / "text-vanilla-42.log").read_text()


def test_the_names_of_the_hardware_are_those_that_records_have() -> None:
    assert lra_grid._hardware("cuda") == hardware()
