"""SIGTERM and SIGINT to real processes: exit 75 with a valid checkpoint, whenever they come; twice means now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_runs import Case, wait_until
from tiny_run import journal_lines, losses


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_between_steps(case: Case, number: signal.Signals) -> None:
    pid = case.forks.start("train", case.recipe, "--out", case.run, fault=("slow", {"seconds": 0.1}))
    wait_until(lambda: (case.run / "journal.jsonl").is_file() and len(losses_so_far(case.run)) >= 4)
    sent = time.monotonic()
    os.kill(pid, number)
    assert case.forks.wait(pid) == 75
    assert time.monotonic() - sent < 5
    assert "transnormer resume" in case.forks.output
    stopped_after = losses(case.run)[-1][0]
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()
    assert journal_lines(case.run, "resumed")[0]["step"] == stopped_after


def losses_so_far(run: Path) -> list[bytes]:
    return (run / "journal.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("number", [0, 10, 27])
def test_signal_during_a_save_is_answered_after_it(case: Case, number: int) -> None:
    fault = ("at_file_operation", {"run": str(case.run), "step": 6, "number": number, "signals": [signal.SIGTERM]})
    assert case.train(fault) == 75
    assert losses(case.run)[-1][0] in (6, 7)
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


@pytest.mark.parametrize("number", [5, 20, 27])
def test_two_signals_end_the_process_at_once(case: Case, number: int) -> None:
    twice = [signal.SIGTERM, signal.SIGTERM]
    fault = ("at_file_operation", {"run": str(case.run), "step": 6, "number": number, "signals": twice})
    assert case.train(fault) == 128 + signal.SIGTERM
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()
    assert not (case.run / "quarantine").exists()


def test_the_command_itself_from_a_fresh_interpreter(case: Case) -> None:
    """The whole way once without the fork server: python -m transnormer, SIGTERM, 75, resume, 0."""
    command = [sys.executable, "-m", "transnormer"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    arguments = ["train", str(case.recipe), "--out", str(case.run)]
    process = subprocess.Popen([*command, *arguments], env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: any((case.run / "checkpoints").glob(".tmp-*")), seconds=120)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    done = subprocess.run([*command, "resume", str(case.run)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 12/12" in done.stdout
    case.require_equal_end()
    assert case.resume() == 0
    assert "is finished after 12 steps" in case.forks.output
