"""Planning against the clock: a pure function of durations, and speeds that come from the best source there is."""

from __future__ import annotations

import json
import time
from dataclasses import replace
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


def job(task: str = "listops", method: str = "t2", folder: Path = Path("nowhere"), seed: int = 42) -> Job:
    config = load_config(f"lra/{task}", [f"model.preset={method}-lra-{task}", f"seed={seed}"])
    return Job(f"{task}-{method}-{seed}", method, task, folder, config, (f"lra/{task}",))


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
    speeds = Speeds([record()], "cuda", HARDWARE, 4, GUESSES, {})
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
    speed = Speeds([record(**changes)], "cuda", HARDWARE, 4, GUESSES, {}).of(job())
    assert (speed.steps_per_second if speed.known_from == "recorded" else None) == expected


def test_only_the_steps_that_are_left_are_counted(tmp_path: Path) -> None:
    speeds = Speeds([record()], "cuda", HARDWARE, 4, GUESSES, {})
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
    speeds = Speeds([], "cuda", HARDWARE, 2, GUESSES, {})
    assert speeds.of(job("text")).steps_per_second == GUESS["cuda"] / 2


def arena_speeds(device: str, *records: Record) -> Speeds:
    table = LongRangeArena
    guesses, relative = table.guesses[device], table.relative_speeds.get(device, {})
    return Speeds(records, device, HARDWARE, 2, guesses, relative)


def test_a_guess_knows_which_rows_are_slower() -> None:
    speeds = Speeds([], "cuda", HARDWARE, 2, GUESSES, {"kernelized": 0.5})
    assert speeds.of(job()).steps_per_second == 250
    assert speeds.of(job(method="kernelized")).steps_per_second == 125
    assert speeds.of(job("text", "kernelized")).steps_per_second == GUESS["cuda"] / 4
    running: Any = [SimpleNamespace(job=job(method="kernelized"), rate=200.0)]
    speeds.see(running)
    other = speeds.of(job())
    assert (other.steps_per_second, other.known_from) == (400, "other methods"), "one slow row does not slow the others"


def test_the_speeds_of_rows_are_those_that_were_measured() -> None:
    file = Path(__file__).parents[2] / "results" / "bench" / "speed-skyformer.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    measured = {row["method"]: row["train_steps_per_second"] for row in rows if row["length"] == 4096}
    relative = LongRangeArena.relative_speeds["cuda"]
    assert relative == pytest.approx({row: rate / measured["t2"] for row, rate in measured.items()}, rel=0.01)


def test_the_slowest_rows_of_the_arena_come_first() -> None:
    rows = LongRangeArena().rows
    jobs = [job("text", row) for row in rows]
    started = [each.row for each in arena_speeds("cuda").longest_first(jobs)]
    assert sorted(started) == sorted(rows)
    assert started[:3] == ["kernelized", "flash_quad", "informer"]
    assert started[-1] == "linformer"
    recorded = record("linformer", wall_steps_per_second=1.0)
    listops = [job("listops", row) for row in rows]
    assert arena_speeds("cuda", recorded).longest_first(listops)[0].row == "linformer", "a record is worth more"
    assert arena_speeds("cpu").longest_first(jobs) == jobs, "nobody has measured them there"


def test_those_that_others_begin_with_and_earlier_seeds_stay_before_the_others() -> None:
    parents = [replace(job("text", row, seed=43), home="elsewhere") for row in ("t2", "kernelized")]
    jobs = [job("text", row, seed=seed) for seed in (42, 43) for row in ("t2", "kernelized")]
    started = arena_speeds("cuda").longest_first([*parents, *jobs])
    assert started == [parents[1], parents[0], jobs[1], jobs[0], jobs[3], jobs[2]]


def test_a_job_that_was_stopped_keeps_its_turn(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00049000").mkdir(parents=True)
    stopped, other = job("text", "kernelized", tmp_path), job("text", "t2")
    speeds = arena_speeds("cuda")
    assert speeds.seconds(stopped) < speeds.seconds(other)
    assert speeds.longest_first([other, stopped]) == [stopped, other]


ROWS = ("t1", "t2", "vanilla", "performer", "kernelized", "llama")
PLACES = [(task, row, seed) for seed in (42, 43) for row in ROWS for task in ("listops", "text")]
JOBS = {place: job(place[0], place[1], seed=place[2]) for place in PLACES}
RATES = st.dictionaries(st.sampled_from(ROWS), st.sampled_from([0.1, 0.5, 1.0, 2.0]))


@given(places=st.permutations(PLACES), relative=RATES, measured=RATES)
def test_the_order_is_complete_by_estimate_and_stable(
    places: list[tuple[str, str, int]], relative: dict[str, float], measured: dict[str, float]
) -> None:
    records = [record(row, wall_steps_per_second=100 * rate) for row, rate in measured.items()]
    speeds = Speeds(records, "cuda", HARDWARE, 4, GUESSES, relative)
    jobs = [JOBS[place] for place in places]
    started = speeds.longest_first(jobs)
    seeds = list(dict.fromkeys(each.config.seed for each in jobs))
    key = {each.name: (seeds.index(each.config.seed), -speeds.seconds(each)) for each in jobs}
    assert [each.name for each in started] == sorted((each.name for each in jobs), key=key.__getitem__)
