"""The table of jobs on a terminal, its lines in a log."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from record_case import make_record
from rich.console import Console

from transnormer.config.load import load_config
from transnormer.experiments import display as display_module
from transnormer.experiments.display import JobDisplay, JobStatus, State, as_rows, progress_line
from transnormer.experiments.job import Job
from transnormer.experiments.record import Record
from transnormer.experiments.worker_pool import Worker


def status(method: str, task: str, state: State = State.waiting, seed: int = 42, **more: Any) -> JobStatus:
    config = load_config(f"lra/{task}", ["train.steps=50000", f"seed={seed}"])
    return JobStatus(Job(f"{task}-{method}-{seed}", method, task, Path("nowhere"), config, ()), state, **more)


def finished(accuracy: float) -> Record:
    return make_record("text", "t2", accuracy=accuracy)


@pytest.fixture
def statuses(monkeypatch: pytest.MonkeyPatch) -> list[JobStatus]:
    """T2 on listops at step 1,300, after 10 seconds for the last 1,200."""
    now = 100.0
    monkeypatch.setattr("transnormer.experiments.worker_pool.time.monotonic", lambda: now)
    running, starting = (status("t2", task, State.running) for task in ("listops", "text"))
    process: Any = None
    running.running = Worker(running.job, process, began=50.0, first_step=0, step=1300, seen=(90.0, 100))
    starting.running = Worker(starting.job, process, began=99.0, first_step=0)
    others = [
        status("vanilla", "listops", State.finished, record=finished(0.38375)),
        status("vanilla", "text", State.failed),
    ]
    return [running, starting, *others, status("t1", "listops"), status("t1", "text", State.stopped)]


def test_rows_are_methods_and_columns_tasks(statuses: list[JobStatus]) -> None:
    columns, rows = as_rows(statuses)
    assert columns == ["method", "listops", "text"]
    assert rows == [
        ["t2", "1,300/50,000  120/s  6.8 min", "starting"],
        ["vanilla", "38.38", "failed"],
        ["t1", "waiting", "stopped"],
    ]
    assert progress_line(statuses) == (
        "1 of 6 finished, 1 waiting, 2 running, 1 failed, 1 stopped; "
        "listops-t2-42 1,300/50,000  120/s  6.8 min; text-t2-42 starting"
    )


def test_several_seeds_have_rows_of_their_own() -> None:
    _, rows = as_rows([status("t2", "text", seed=seed) for seed in (1, 2)])
    assert rows == [["t2, seed 1", "waiting"], ["t2, seed 2", "waiting"]]


def test_a_log_has_lines_now_and_then_and_the_table_at_the_end(
    statuses: list[JobStatus], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(display_module.time, "monotonic", lambda: clock[0])
    output = io.StringIO()
    with JobDisplay(Console(file=output)) as display:
        display.say("text-t2-42: [bold] started")
        for second in range(70):
            clock[0] = second
            display.update(statuses)
    lines = output.getvalue().splitlines()
    assert lines[0] == "text-t2-42: [bold] started"
    assert [line[:15] for line in lines[1:3]] == ["1 of 6 finished"] * 2
    assert [line.split()[0] for line in lines[3:] if line.strip() and "─" not in line] == [
        *("method", "t2", "vanilla", "t1", "1"),
    ]
    assert lines[-1] == "1 of 6 finished, 1 waiting, 2 running, 1 failed, 1 stopped (test accuracy)"


def test_a_terminal_has_one_table_that_changes(statuses: list[JobStatus], monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=100, legacy_windows=False)
    with JobDisplay(console) as display:
        display.update(statuses)
        statuses[0].state, statuses[0].record, statuses[0].running = State.finished, finished(0.416), None
        display.say("listops-t2-42: test accuracy 41.60")
    text = output.getvalue()
    assert "1,300/50,000  120/s  6.8 min" in text
    assert "\x1b[?25l" in text, "the cursor is hidden"
    assert text.rstrip().endswith("\x1b[?25h"), "and comes back"
    last = text[text.rindex("method") :]
    assert "41.60" in last
    assert "1,300" not in last
