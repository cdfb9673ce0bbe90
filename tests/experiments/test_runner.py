"""Jobs in real processes: they run to the end, survive whatever ends them early, and never do anything twice."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from reproduce_case import TINY, ReproduceCase, wait_until
from tiny_run import journal_lines, losses

from transnormer.config.load import dump_config
from transnormer.experiments import budget, job, runner
from transnormer.experiments.executor import LocalExecutor
from transnormer.experiments.experiment import Selection, plan
from transnormer.experiments.job import Job
from transnormer.experiments.paper.lra import LongRangeArena
from transnormer.experiments.worker_pool import WorkerPool
from transnormer.train.run_folder import RunFolder

LONG = ("train.steps=12", "train.eval_every=6", "train.save_every=1000")


def planned(case: ReproduceCase, methods: Sequence[str], *overrides: str) -> list[Job]:
    selection = Selection(methods, ["text"], [42], "skyformer", case.data, overrides)
    return plan(LongRangeArena(), selection, case.runs)


def accuracy(case: ReproduceCase, name: str) -> float:
    return 100 * case.record(name)["test"]["metrics"]["accuracy"]


def logged(case: ReproduceCase, name: str) -> int:
    path = case.runs / name / "journal.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def signal_when(condition: Callable[[], bool], number: int = signal.SIGTERM) -> threading.Thread:
    """A signal to this process, which runs the jobs, as soon as the condition holds."""

    def send() -> None:
        wait_until(condition)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_two_methods_on_two_tasks(case: ReproduceCase) -> None:
    case.options = ["--methods", "t2,vanilla", "--tasks", "text,image", "--jobs", "2"]
    assert case.run() == 0, case.err
    # Steps of image are guessed to be the slower ones.
    names = [f"{task}-{method}-42" for task in ("image", "text") for method in ("t2", "vanilla")]
    assert sorted(path.stem for path in case.results.glob("*.json")) == sorted(names)
    assert [line.split(":")[0] for line in case.out.splitlines() if line.endswith(": started")] == names
    assert max(case.record(name)["jobs_at_once"] for name in names) == 2
    for name in names:
        result = RunFolder(case.runs / name).read_result()
        assert result is not None
        made = case.record(name)
        assert made["test"]["metrics"] == result["test"]["metrics"]
        assert made["valid"] == result["best"]
        assert made["primary_metric"] == "accuracy"
        assert made["steps"] == 4
        assert made["seconds"] == result["seconds"]
        assert made["wall_steps_per_second"] < 4 / result["seconds"]
        assert made["command"][:3] == ["transnormer", "train", f"lra/{name.split('-')[0]}"]
        assert made["date"].startswith("20")
        assert made["peak_memory_bytes"] is None
        assert result["peak_memory_bytes"] is None
        assert made["jobs_at_once"] in (1, 2), "the last one may have been alone"
        assert made["resumed_after"] == 0
        assert made["parameters"] == result["parameters"]
        assert made["data"]["label"] == "stand-in"
        assert made["data"]["sizes"]["test"] == (40 if "text" in name else 8)
        assert made["changes"]["train.steps"] == 4
        assert not {"seed", "model.preset", "train.device", "data.store"} & made["changes"].keys()
        assert made["config"]["model"]["preset"] == name.split("-")[1] + "-lra-" + name.split("-")[0]
        assert str(case.data) not in json.dumps(made), "a record holds no folder of this machine"
        assert (case.runs / f"{name}.log").read_text().strip()
    page = (case.results / "README.md").read_text()
    accuracies = [f"{accuracy(case, f'{task}-t2-42'):.2f}" for task in ("text", "image")]
    assert f"{accuracies[0]}†‡" in page
    assert ["t2", *accuracies] in [line.split() for line in case.out.splitlines()], "the table in the log"

    before = {path: path.stat().st_mtime_ns for path in case.folder.rglob("*") if path.is_file()}
    assert case.run() == 0
    assert "jobs: 4 of 4 finished, 0 to run" in case.out
    assert ": started" not in case.out
    changed = {path.name for path, when in before.items() if path.stat().st_mtime_ns != when}
    assert changed <= {"README.md", "lock"}
    assert (case.results / "README.md").read_text() == page

    # A fresh machine has the records, not the runs: nothing is made again.
    case.runs.rename(case.folder / "elsewhere")
    assert case.run() == 0
    assert "4 of 4 finished, 0 to run" in case.out
    assert not any(case.runs.glob("text-*"))


def test_a_signal_saves_all_and_the_same_command_goes_on(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--jobs", "2", *LONG)
    monkeypatch.setenv("HOLD", "text-t2-42,text-vanilla-42")
    started = signal_when(lambda: min(logged(case, "text-t2-42"), logged(case, "text-vanilla-42")) >= 5)
    assert case.run(*options) == 75, case.err
    started.join()
    assert "SIGTERM: saving what runs: text-t2-42, text-vanilla-42" in case.out
    assert "left: text-t2-42, text-vanilla-42" in case.out
    assert "stopped with 2 of 2 jobs left" in case.err
    assert not any(case.results.glob("*.json"))
    stopped_at = {}
    for name in ("text-t2-42", "text-vanilla-42"):
        stopped_at[name] = losses(case.runs / name)[-1][0]
        assert f"{name}: stopped, saved after step {stopped_at[name]}" in case.out
    assert case.run(*options) == 0, case.err
    assert "text-t2-42: resumed" in case.out
    for name, step in stopped_at.items():
        assert [line["step"] for line in journal_lines(case.runs / name, "resumed")] == [step]
        assert [step for step, _ in losses(case.runs / name)] == list(range(1, 13))
        assert case.record(name)["steps"] == 12
        assert case.record(name)["resumed_after"] == step


def test_two_signals_end_all_at_once(case: ReproduceCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that takes long to save: the first signal reaches it once, the second ends it."""
    script = tmp_path / "slow_to_save.py"
    script.write_text(
        "import os, signal, sys\n"
        "count = 0\n"
        "def handle(number, frame):\n"
        "    global count\n"
        "    count += 1\n"
        "    os.write(1, f'told {count}\\n'.encode())\n"
        "    if count == 2: sys.exit(128 + number)\n"
        "signal.signal(signal.SIGTERM, handle)\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )
    monkeypatch.setattr(job, "PROGRAM", (sys.executable, "-I", str(script)))
    log = case.runs / "text-t2-42.log"
    first = signal_when(lambda: log.is_file() and "ready" in log.read_text(), signal.SIGINT)
    second = signal_when(lambda: log.is_file() and "told 1" in log.read_text(), signal.SIGINT)
    assert case.run() == 75
    first.join()
    second.join()
    assert "SIGINT: saving what runs: text-t2-42" in case.out
    assert "SIGINT: ending what runs: text-t2-42" in case.out
    assert log.read_text() == "ready\ntold 1\ntold 2\n"


def test_a_killed_runner_takes_its_jobs_with_it_and_is_taken_up_again(
    case: ReproduceCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended by SIGKILL once one job is finished and another has begun."""
    options = ("--seeds", "1", "--jobs", "1", *LONG)
    monkeypatch.setenv("HOLD", "text-vanilla-1")
    command = case.start(*options)
    wait_until(lambda: (case.results / "text-t2-1.json").is_file() and logged(case, "text-vanilla-1") >= 5)
    assert case.run(*options) == 2, "two at once in the same folder"
    assert f"runs is being written by process {command.pid}" in case.err
    finished = (case.results / "text-t2-1.json").read_bytes()
    os.kill(command.pid, signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL
    assert case.run(*options) == 0, case.err
    assert "jobs: 1 of 2 finished, 1 to run" in case.out
    assert "text-t2-1: started" not in case.out
    assert "text-vanilla-1: resumed" in case.out
    assert (case.results / "text-t2-1.json").read_bytes() == finished
    assert len(list(case.results.glob("*.json"))) == 2
    assert losses(case.runs / "text-vanilla-1")[-1][0] == 12
    assert journal_lines(case.runs / "text-vanilla-1", "resumed")[0]["step"] >= 4


def test_a_failed_job_does_not_stop_the_others(case: ReproduceCase) -> None:
    (failing,) = planned(case, ["t2"], *TINY)
    broken = RunFolder(failing.folder)
    (broken.checkpoints / "step-00000002").mkdir(parents=True)
    broken.config_file.write_text(dump_config(failing.config))
    assert case.run() == 1
    assert "text-t2-42: failed (exit code 3); the end of" in case.out
    assert "no checkpoint in" in case.out, "the last lines of its log"
    assert "error: 1 of 2 jobs failed: text-t2-42" in case.err
    assert [path.stem for path in case.results.glob("*.json")] == ["text-vanilla-42"]


def test_time_that_is_up(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--budget-minutes", "0.05", "train.steps=100000", "train.save_every=100000", "train.eval_every=50000")
    assert case.run(*options) == 0
    assert "budget of 0.05 min: 0 jobs are expected to fit, 2 are not" in case.out
    assert "does not fit: text-t2-42, about 1666.9 min (guess)" in case.out
    assert "left: text-t2-42, text-vanilla-42; the same command goes on with them" in case.out
    assert not any(case.runs.glob("text*")), "there is no time to take a step in"
    monkeypatch.setitem(LongRangeArena.guesses["cpu"], "text", 1e6)
    clock = property(lambda _: 100.0 if logged(case, "text-t2-42") < 5 else -1.0)
    monkeypatch.setattr(budget.Budget, "seconds_left", clock)
    assert case.run(*options) == 0, case.err
    assert "2 jobs are expected to fit" in case.out
    assert "time is up: saving what runs: text-t2-42" in case.out
    assert "text-t2-42: stopped, saved after step" in case.out
    assert "text-vanilla-42: started" not in case.out
    step = losses(case.runs / "text-t2-42")[-1][0]
    assert (case.runs / "text-t2-42" / "checkpoints" / f"step-{step:08d}").is_dir()


def test_a_budget_too_short_for_any_job_is_used_anyway(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = property(lambda _: 100.0 if logged(case, "text-t2-42") < 5 else -1.0)
    monkeypatch.setattr(budget.Budget, "seconds_left", clock)
    options = ("train.steps=100000", "train.save_every=100000", "train.eval_every=50000")
    assert case.run("--budget-minutes", "2", *options) == 0, case.err
    assert "budget of 2 min: 0 jobs are expected to fit, 2 are not" in case.out
    assert (
        "time that is left goes to the first of those that do not fit; they are stopped with a checkpoint" in case.out
    )
    assert "text-t2-42: started" in case.out
    assert "text-vanilla-42: started" not in case.out
    assert "time is up: saving what runs: text-t2-42" in case.out
    step = losses(case.runs / "text-t2-42")[-1][0]
    assert f"text-t2-42: stopped, saved after step {step}" in case.out
    assert "left: text-t2-42, text-vanilla-42; the same command goes on with them" in case.out
    longer = logged(case, "text-t2-42") + 5
    clock = property(lambda _: 100.0 if logged(case, "text-t2-42") < longer else -1.0)
    monkeypatch.setattr(budget.Budget, "seconds_left", clock)
    assert case.run("--budget-minutes", "2", *options) == 0, case.err
    assert "text-t2-42: resumed" in case.out
    assert [line["step"] for line in journal_lines(case.runs / "text-t2-42", "resumed")] == [step]


def test_jobs_that_fit_come_before_those_that_do_not(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.Budget, "fits", lambda _, job: job.row == "vanilla")
    assert case.run("--budget-minutes", "5", "--jobs", "1") == 0, case.err
    started = [line.split(":")[0] for line in case.out.splitlines() if line.endswith(": started")]
    assert started == ["text-vanilla-42", "text-t2-42"]
    assert len(list(case.results.glob("*.json"))) == 2


@pytest.mark.parametrize("budget_minutes", [(), ("--budget-minutes", "60")])
def test_the_longest_jobs_start_first_as_the_plan_says(
    case: ReproduceCase, monkeypatch: pytest.MonkeyPatch, budget_minutes: tuple[str, ...]
) -> None:
    slower = {"t1": 0.5, "vanilla": 0.25}
    monkeypatch.setattr(LongRangeArena, "relative_speeds", {"cpu": slower})
    case.options = ["--methods", "t2,t1,vanilla", "--tasks", "text", "--jobs", "1"]
    longest_first = ["text-vanilla-42", "text-t1-42", "text-t2-42"]
    assert case.run("--dry-run", *budget_minutes) == 0, case.err
    lines = case.out.splitlines()
    assert [line.split(":")[0] for line in lines if ": transnormer train" in line] == longest_first
    fits = [line.split(",")[0] for line in lines if line.startswith("  fits: ")]
    assert fits == ([f"  fits: {name}" for name in longest_first] if budget_minutes else [])
    assert case.run(*budget_minutes) == 0, case.err
    assert [line.split(":")[0] for line in case.out.splitlines() if line.endswith(": started")] == longest_first
    shown = [line.split()[0] for line in case.out.splitlines() if line.split()[:1] in (["t2"], ["t1"], ["vanilla"])]
    assert shown == ["t2", "t1", "vanilla"], "the table on the screen has the rows as they were asked for"


def test_generated_data_are_made_once_before_the_jobs(
    case: ReproduceCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRANSNORMER_CACHE", str(cache))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    start, present = WorkerPool.start, []

    def noted(self: WorkerPool, job: Job) -> None:
        present.append([path.name for path in cache.glob("stores/lra-listops-*") if (path / "manifest.json").is_file()])
        start(self, job)

    monkeypatch.setattr(WorkerPool, "start", noted)
    case.options = ["--methods", "t2,linear_elu", "--tasks", "listops", "--jobs", "2"]
    assert case.run("lra.limit_examples=3", "train.steps=2", "train.batch_size=2") == 0, case.err
    assert [len(names) for names in present] == [1, 1]
    made = case.record("listops-t2-42")
    assert made["data"]["meta"]["generated"] == {"seed": 0}
    assert made["data"]["meta"]["limit"] == 3
    assert made["data"]["label"] == "stand-in"


def test_devices(case: ReproduceCase, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["t1", "t2", "vanilla", "flash"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    jobs = planned(case, methods)
    assert LocalExecutor().device_of(jobs) == "cuda"
    assert runner.Runner(LongRangeArena(), jobs, case.runs, case.results).at_once == 2
    jobs = planned(case, methods, "train.device=cpu")
    assert LocalExecutor().device_of(jobs) == "cpu"
    assert runner.Runner(LongRangeArena(), jobs, case.runs, case.results).at_once == 1
