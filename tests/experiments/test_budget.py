"""Planning against the clock: a pure function of durations, and speeds that come from the best source there is."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transnormer.config.load import load_config
from transnormer.experiments.budget import GUESSES, START_SECONDS, Budget, Speeds, what_fits
from transnormer.experiments.cells import Cell
from transnormer.models.presets import SIZES

HARDWARE = {"cpu": "a processor", "cores": 8, "gpus": ["a GPU"]}


def cell(task: str = "listops", method: str = "t2", folder: Path = Path("nowhere")) -> Cell:
    return Cell(task, method, 42, folder, load_config(f"lra/{task}"), ())


def record(**changes: Any) -> dict[str, Any]:
    return {
        "task": "listops",
        "method": "t2",
        "device": "cuda",
        "hardware": HARDWARE,
        "wall_steps_per_second": 100.0,
        "steps_per_second": 400.0,
        "cells_at_once": 4,
        **changes,
    }


@pytest.mark.parametrize(
    ("durations", "jobs", "seconds", "fitting"),
    [
        ([], 2, 10, ""),
        ([("a", 5), ("b", 5), ("c", 5)], 1, 10, "ab"),
        ([("a", 5), ("b", 5), ("c", 5)], 2, 10, "abc"),
        ([("a", 5), ("b", 5), ("c", 5), ("d", 5), ("e", 0.1)], 2, 10, "abcd"),
        ([("a", 6), ("b", 6), ("c", 4), ("d", 3)], 1, 10, "ac"),
        ([("a", 11), ("b", 2)], 4, 10, "b"),
        ([("a", 8), ("b", 3), ("c", 3), ("d", 3), ("e", 2)], 2, 10, "abcde"),
        ([("a", 10)], 1, 10, "a"),
        ([("a", 10)], 1, 0, ""),
    ],
)
def test_what_fits(durations: list[tuple[str, float]], jobs: int, seconds: float, fitting: str) -> None:
    found, left = what_fits(durations, jobs, seconds)
    assert "".join(found) == fitting
    assert found + left == sorted(found) + sorted(left), "both in the order of the grid"
    assert sorted(found + left) == [name for name, _ in durations]


@given(
    durations=st.lists(st.floats(0.1, 20), max_size=20),
    jobs=st.integers(1, 6),
    seconds=st.floats(0, 60, allow_nan=False),
)
def test_what_fits_takes_no_more_than_there_is(durations: list[float], jobs: int, seconds: float) -> None:
    found, left = what_fits(list(enumerate(durations)), jobs, seconds)
    assert sum(durations[number] for number in found) <= jobs * seconds + 1e-6
    assert all(durations[number] <= seconds for number in found)
    if not found:
        assert all(durations[number] > seconds for number in left)


def test_a_speed_comes_from_records_then_running_cells_then_guesses() -> None:
    speeds = Speeds([record()], "cuda", HARDWARE, jobs=4)
    assert (speeds.of(cell()).steps_per_second, speeds.of(cell()).known_from) == (100, "recorded")
    assert speeds.of(cell(method="vanilla")).known_from == "guess"
    assert speeds.of(cell(method="vanilla")).steps_per_second == GUESSES["cuda"]["listops"] / 4
    running: Any = [
        SimpleNamespace(cell=cell(method="performer"), rate=20.0),
        SimpleNamespace(cell=cell(method="flash"), rate=40.0),
        SimpleNamespace(cell=cell("text", "flash"), rate=1000.0),
        SimpleNamespace(cell=cell(method="bigbird"), rate=None),
    ]
    speeds.see(running)
    assert (speeds.of(cell(method="flash")).steps_per_second, speeds.of(cell(method="flash")).known_from) == (
        40,
        "running",
    )
    assert speeds.of(cell(method="vanilla")).steps_per_second == 30
    assert speeds.of(cell(method="vanilla")).known_from == "other methods"
    assert speeds.of(cell()).known_from == "recorded"
    speeds.learn(record(method="vanilla", wall_steps_per_second=7.0))
    assert speeds.of(cell(method="vanilla")).steps_per_second == 7


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cells_at_once": 8}, 100),
        ({"cells_at_once": 1}, 25),
        ({"cells_at_once": None}, 25),
        ({"wall_steps_per_second": None}, 400),
        ({"device": "cpu"}, None),
        ({"hardware": {**HARDWARE, "gpus": ["another"]}}, None),
        ({"hardware": {**HARDWARE, "cpu": "another"}}, 100),
    ],
)
def test_what_a_record_is_worth(changes: dict[str, Any], expected: float | None) -> None:
    speed = Speeds([record(**changes)], "cuda", HARDWARE, jobs=4).of(cell())
    assert (speed.steps_per_second if speed.known_from == "recorded" else None) == expected


def test_only_the_steps_that_are_left_are_counted(tmp_path: Path) -> None:
    speeds = Speeds([record()], "cuda", HARDWARE, jobs=4)
    half_done = cell(folder=tmp_path)
    (tmp_path / "checkpoints" / "step-00030000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00005000").mkdir(parents=True)
    assert speeds.seconds(cell()) == START_SECONDS + 500
    assert speeds.seconds(half_done) == START_SECONDS + 200
    budget = Budget(speeds, time.monotonic() + 400)
    assert not budget.has_room_for(cell())
    assert budget.has_room_for(half_done)
    assert budget.plan([cell(), half_done], 1) == ([half_done], [cell()])


def test_there_is_a_guess_for_every_task() -> None:
    tasks = {size.removeprefix("lra-") for size in SIZES if size.startswith("lra-")}
    assert all(guesses.keys() == tasks for guesses in GUESSES.values())
