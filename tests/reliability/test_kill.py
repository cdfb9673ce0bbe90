"""kill -9 at any moment, above all during a save: the next `resume` ends with the same weights, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from real_runs import Case, Forks, wait_until
from tiny_run import journal_lines

from transnormer.train import checkpoint

SAVE = 6  # this checkpoint follows an evaluation, is the best so far, and lets that of step 3 be pruned


def operations(case: Case, scratch: Path) -> list[str]:
    note = scratch / "operations.txt"
    assert case.train(("list_file_operations", {"run": str(case.run), "step": SAVE, "into": str(note)})) == 0
    return note.read_text().splitlines()


@pytest.mark.reliability("R1")
def test_killed_before_any_file_operation_of_a_save(
    case: Case, scratch: Path, at_full_figures: bool, count_cases: Callable[[int], None]
) -> None:
    listed = operations(case, scratch)
    text = "\n".join(listed)
    for word in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "best.json", "os.remove"):
        assert word in text, f"the sweep would miss {word}"
    # Nothing on the disk changes before a file is opened for reading: those moments equal the ones that follow.
    moments = [number for number, operation in enumerate(listed) if "open" not in operation or operation.endswith(" w")]
    assert len(moments) >= 20
    moments = list(range(len(listed))) if at_full_figures else moments
    count_cases(len(moments))
    for number in moments:
        one = Case(case.forks, case.recipe, case.undisturbed, scratch / f"run{number}")
        fault = (
            "at_file_operation",
            {"run": str(one.run), "step": SAVE, "number": number, "signals": [signal.SIGKILL]},
        )
        assert one.train(fault) == -signal.SIGKILL, listed[number]
        for folder in checkpoint.list_checkpoints(one.run / "checkpoints"):
            checkpoint.verify(folder)  # at every moment, what is called a checkpoint is a whole one
        for half in (one.run / "checkpoints").glob(".tmp-step-*/*"):  # as if killed in the middle of writing each file
            os.truncate(half, half.stat().st_size // 2)
        assert one.resume() == 0, f"{listed[number]}: {one.forks.output}"
        one.require_equal_end()
        [resumed] = journal_lines(one.run, "resumed")
        assert resumed["step"] in (3, 6), "more than one save interval was lost"
        assert not (one.run / "quarantine").exists(), "an interrupted save was taken for a checkpoint"


@pytest.mark.reliability("R1")
def test_killed_from_outside_while_a_save_is_in_progress(case: Case, scratch: Path) -> None:
    for delay in (0.0, 0.002, 0.005, 0.01):
        one = Case(case.forks, case.recipe, case.undisturbed, scratch / f"run{delay}")
        # The second stop keeps it from ending before this process is woken.
        fault = ("stop_at_saves", {"run": str(one.run), "steps": [6, 9]})
        pid = one.forks.start("train", one.recipe, "--out", one.run, fault=fault)
        one.forks.wait_for_stop(pid)
        os.kill(pid, signal.SIGCONT)
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        assert one.forks.wait(pid) == -signal.SIGKILL
        assert one.resume() == 0, one.forks.output
        one.require_equal_end()


@pytest.mark.reliability("R1")
def test_killed_before_the_first_checkpoint_starts_over(case: Case) -> None:
    fault = ("at_file_operation", {"run": str(case.run), "step": 3, "number": 0, "signals": [signal.SIGKILL]})
    assert case.train(fault) == -signal.SIGKILL
    assert case.resume() == 0, case.forks.output
    case.require_equal_end()


@pytest.mark.reliability("R12")
def test_a_run_survives_a_storm_of_signals(
    forks: Forks, recipe: Path, scratch: Path, at_full_figures: bool, count_cases: Callable[[int], None]
) -> None:
    """Resumed after every death, it ends as the undisturbed run does, with each step once in its journal."""
    most, steps = (30, 300) if at_full_figures else (10, 60)
    arguments = ("train", recipe, f"train.steps={steps}", "train.save_every=5", "train.eval_every=20")
    calm = Case(forks, recipe, scratch / "calm", scratch / "storm")
    assert forks.run(*arguments, "--out", calm.undisturbed) == 0
    generator, journal = random.Random(1), calm.run / "journal.jsonl"

    def written() -> int:
        return journal.read_bytes().count(b"\n") if journal.is_file() else 0

    # A life ends after eight steps if not before: on a busy machine a run may be over before this process is woken.
    held = scratch / "held"
    fault = ("slow_then_held", {"seconds": 0.01, "steps": 8, "note": str(held)})
    pid = forks.start(*arguments, "--out", calm.run, fault=fault)
    deaths = 0
    while True:
        if deaths < most:
            wait_until((calm.run / "config.yaml").is_file)
            some = written() + generator.randint(1, 8)
            wait_until(lambda some=some: written() >= some or held.exists() or (calm.run / "result.json").is_file())
            time.sleep(generator.uniform(0.0, 0.02))
            os.kill(pid, generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
        code = forks.wait(pid)
        if code == 0:
            break
        assert code in (-signal.SIGKILL, 75, -signal.SIGTERM, 130), forks.output
        deaths += 1
        held.unlink(missing_ok=True)
        pid = forks.start("resume", calm.run, fault=fault if deaths < most else None)
    count_cases(deaths)
    assert deaths >= most // 2
    calm.require_equal_end()
