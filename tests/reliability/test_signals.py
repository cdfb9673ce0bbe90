"""SIGTERM and SIGINT to real processes: exit 75 with a valid checkpoint, whenever they come; twice means now."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from real_runs import Case, wait_until
from tiny_run import journal_lines, losses


@pytest.mark.reliability("R5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_between_steps(case: Case, number: signal.Signals) -> None:
    pid = case.forks.start("train", case.recipe, "--out", case.run, fault=("stop_at_step", {"step": 5}))
    case.forks.wait_for_stop(pid)
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)
    assert case.forks.wait(pid) == 75
    assert f"{number.name}: stopping after this step, which is saved" in case.forks.output
    assert "transnormer resume" in case.forks.output
    assert losses(case.run)[-1][0] == 5, "the step in progress is finished, and no other"
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()
    assert journal_lines(case.run, "resumed")[0]["step"] == 5


@pytest.mark.reliability("R5")
def test_signal_at_any_moment_of_a_run(case: Case, scratch: Path, sized: Callable[[int, int], int]) -> None:
    """From when its config is written to its end: in a step, an evaluation, a save, or between them."""
    generator = random.Random(5)
    for number in range(sized(3, 12)):
        one = Case(case.forks, case.recipe, case.undisturbed, scratch / f"run{number}")
        slow = ("slow_then_held", {"seconds": 0.02, "steps": 99, "note": str(scratch / "note")})
        pid = one.forks.start("train", one.recipe, "--out", one.run, fault=slow)
        wait_until((one.run / "config.yaml").is_file)
        time.sleep(generator.uniform(0.0, 0.4) if number else 0.0)
        os.kill(pid, generator.choice([signal.SIGTERM, signal.SIGINT]))
        assert one.forks.wait(pid) in (75, 0), one.forks.output
        assert one.resume() == 0, one.forks.output
        one.require_equal_end()


@pytest.mark.reliability("R5")
@pytest.mark.parametrize("number", [0, 10, 27])
def test_signal_during_a_save_is_answered_after_it(case: Case, number: int) -> None:
    fault = ("at_file_operation", {"run": str(case.run), "step": 6, "number": number, "signals": [signal.SIGTERM]})
    assert case.train(fault) == 75
    assert losses(case.run)[-1][0] in (6, 7)
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


@pytest.mark.reliability("R5")
@pytest.mark.parametrize("number", [5, 20, 27])
def test_two_signals_end_the_process_at_once(case: Case, number: int) -> None:
    twice = [signal.SIGTERM, signal.SIGTERM]
    fault = ("at_file_operation", {"run": str(case.run), "step": 6, "number": number, "signals": twice})
    assert case.train(fault) == 128 + signal.SIGTERM
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()
    assert not (case.run / "quarantine").exists()


STOPPED_AT_STEP_5 = """
import runpy, faults
faults.stop_at_step(5)
runpy.run_module("transnormer", run_name="__main__", alter_sys=True)
"""


@pytest.mark.reliability("R5")
def test_the_command_itself_from_a_fresh_interpreter(case: Case) -> None:
    """The whole way once without the fork server: python -m transnormer, SIGTERM, 75, resume, 0."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    arguments = ["train", str(case.recipe), "--out", str(case.run)]
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED_AT_STEP_5, *arguments], env=environment, stdout=subprocess.DEVNULL
    )
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=300) == 75
    resume = [sys.executable, "-m", "transnormer", "resume", str(case.run)]
    done = subprocess.run(resume, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 12/12" in done.stdout
    case.require_equal_end()
    assert case.resume() == 0
    assert "is finished after 12 steps" in case.forks.output


@pytest.mark.reliability("R5")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["build_task", "load_file"])
def test_signal_before_the_first_step_of_a_resumed_run(stopped_case: Case, number: signal.Signals, moment: str) -> None:
    pid = stopped_case.forks.start("resume", stopped_case.run, fault=("stop_at_call", {"name": moment}))
    stopped_case.forks.wait_for_stop(pid)
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)
    assert stopped_case.forks.wait(pid) == 75
    assert "transnormer resume" in stopped_case.forks.output
    assert stopped_case.resume() == 0, stopped_case.forks.output
    stopped_case.require_equal_end()
