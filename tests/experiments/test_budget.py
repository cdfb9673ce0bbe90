"""Planning against the clock: a pure function of durations, and speeds that come from the best source there is."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_case import make_record

from transnormer.config.load import load_config
from transnormer.experiments.budget import GUESS, START_SECONDS, Budget, Speeds, what_fits
from transnormer.experiments.job import Job
from transnormer.experiments.paper.lra import LongRangeArena
from transnormer.experiments.record import Record
from transnormer.models.presets import SIZES

HARDWARE = {"cpu": "a processor", "cores": 8, "gpus": ["a GPU"]}


GUESSES = {"listops": 500.0}


def job(task: str = "listops", method: str = "t2", folder: Path = Path("nowhere")) -> Job:
    config = load_config(f"lra/{task}", [f"model.preset={method}-lra-{task}"])
    return Job(f"{task}-{method}-42", method, task, folder, config, (f"lra/{task}",))


def record(method: str = "t2", **changes: Any) -> Record:
    fields = {"device": "cuda", "hardware": HARDWARE, "wall_steps_per_second": 100.0, "jobs_at_once": 4}
    return make_record("listops", method, steps=4000, seconds=10.0, **{**fields, **changes})


@pytest.mark.parametrize(
    ("durations", "at_once", "seconds", "fitting"),
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
def test_what_fits(durations: list[tuple[str, float]], at_once: int, seconds: float, fitting: str) -> None:
    found, left = what_fits(durations, at_once, seconds)
    assert "".join(found) == fitting
    assert found + left == sorted(found) + sorted(left), "both in the order given"
    assert sorted(found + left) == [name for name, _ in durations]


@given(
    durations=st.lists(st.floats(0.1, 20), max_size=20),
    at_once=st.integers(1, 6),
    seconds=st.floats(0, 60, allow_nan=False),
)
def test_what_fits_takes_no_more_than_there_is(durations: list[float], at_once: int, seconds: float) -> None:
    found, left = what_fits(list(enumerate(durations)), at_once, seconds)
    assert sum(durations[number] for number in found) <= at_once * seconds + 1e-6
    assert all(durations[number] <= seconds for number in found)
    if not found:
        assert all(durations[number] > seconds for number in left)


def test_a_speed_comes_from_records_then_running_jobs_then_guesses() -> None:
    speeds = Speeds([record()], "cuda", HARDWARE, 4, GUESSES)
    assert (speeds.of(job()).steps_per_second, speeds.of(job()).known_from) == (100, "recorded")
    assert speeds.of(job(method="vanilla")).known_from == "guess"
    assert speeds.of(job(method="vanilla")).steps_per_second == GUESSES["listops"] / 4
    running: Any = [
        SimpleNamespace(job=job(method="performer"), rate=20.0),
        SimpleNamespace(job=job(method="flash"), rate=40.0),
        SimpleNamespace(job=job("text", "flash"), rate=1000.0),
        SimpleNamespace(job=job(method="bigbird"), rate=None),
    ]
    speeds.see(running)
    assert (speeds.of(job(method="flash")).steps_per_second, speeds.of(job(method="flash")).known_from) == (
        40,
        "running",
    )
    assert speeds.of(job(method="vanilla")).steps_per_second == 30
    assert speeds.of(job(method="vanilla")).known_from == "other methods"
    assert speeds.of(job()).known_from == "recorded"
    speeds.learn(record("vanilla", wall_steps_per_second=7.0))
    assert speeds.of(job(method="vanilla")).steps_per_second == 7


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"jobs_at_once": 8}, 100),
        ({"jobs_at_once": 1}, 25),
        ({"jobs_at_once": None}, 25),
        ({"wall_steps_per_second": None}, 400),
        ({"device": "cpu"}, None),
        ({"hardware": {**HARDWARE, "gpus": ["another"]}}, None),
        ({"hardware": {**HARDWARE, "cpu": "another"}}, 100),
    ],
)
def test_what_a_record_is_worth(changes: dict[str, Any], expected: float | None) -> None:
    speed = Speeds([record(**changes)], "cuda", HARDWARE, 4, GUESSES).of(job())
    assert (speed.steps_per_second if speed.known_from == "recorded" else None) == expected


def test_only_the_steps_that_are_left_are_counted(tmp_path: Path) -> None:
    speeds = Speeds([record()], "cuda", HARDWARE, 4, GUESSES)
    half_done = job(folder=tmp_path)
    (tmp_path / "checkpoints" / "step-00030000").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00005000").mkdir(parents=True)
    assert speeds.seconds(job()) == START_SECONDS + 500
    assert speeds.seconds(half_done) == START_SECONDS + 200
    budget = Budget(speeds, time.monotonic() + 400)
    assert not budget.fits(job())
    assert budget.fits(half_done)
    assert budget.plan([job(), half_done], 1) == ([half_done], [job()])


def test_there_is_a_guess_for_every_task() -> None:
    tasks = {size.removeprefix("lra-") for size in SIZES if size.startswith("lra-")}
    assert LongRangeArena.guesses.keys() == GUESS.keys()
    assert all(guesses.keys() == tasks for guesses in LongRangeArena.guesses.values())


def test_a_column_without_a_guess_has_one() -> None:
    speeds = Speeds([], "cuda", HARDWARE, 2, GUESSES)
    assert speeds.of(job("text")).steps_per_second == GUESS["cuda"] / 2
