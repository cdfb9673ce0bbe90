"""kill -9 while a finished run trains longer: what it had stays, and the next `resume` brings it to its end."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from real_runs import Case
from tiny_run import weights_hash

from transnormer.train import checkpoint

LONGER = 18


def extended(case: Case, name: str, fault=None) -> tuple[Case, int]:
    run = case.run.with_name(name)
    shutil.copytree(case.undisturbed, run)
    one = Case(case.forks, case.recipe, case.undisturbed, run)
    return one, one.forks.run("resume", run, f"train.steps={LONGER}", fault=fault)


def moments_of_the_end(case: Case, note: Path) -> list[int]:
    """Where folders and files change their names after the last checkpoint: the final weights and the result."""
    run = case.run.with_name("listed")
    fault = ("list_file_operations", {"run": str(run), "step": LONGER, "into": str(note)})
    assert extended(case, "listed", fault)[1] == 0, case.forks.output
    listed = note.read_text().splitlines()
    ends = [n for n, line in enumerate(listed) if line.startswith("os.rename") and "checkpoints" not in line]
    assert any("final" in listed[n] for n in ends)
    assert any("result.json" in listed[n] for n in ends)
    return ends


@pytest.mark.reliability("R1")
def test_killed_while_it_trains_longer(case: Case, scratch: Path) -> None:
    whole, code = extended(case, "whole")
    assert code == 0, whole.forks.output
    at_the_end = [(LONGER, number) for number in moments_of_the_end(case, scratch / "operations.txt")]
    assert len(at_the_end) >= 3
    for step, number in [(15, 9), *at_the_end]:
        name = f"run-{step}-{number}"
        place = {"run": str(case.run.with_name(name)), "step": step}
        fault = ("at_file_operation", {**place, "number": number, "signals": [signal.SIGKILL]})
        one, code = extended(case, name, fault)
        assert code == -signal.SIGKILL
        assert json.loads((one.run / "result.json").read_text())["steps"] in (12, LONGER)
        if step == LONGER:
            checkpoint.verify(one.run / "checkpoints" / f"step-{LONGER:08d}")
        else:
            assert weights_hash(one.run) == weights_hash(case.undisturbed)
        assert one.resume() == 0, one.forks.output
        assert json.loads((one.run / "result.json").read_text())["steps"] == LONGER
        Case(case.forks, case.recipe, whole.run, one.run).require_equal_end()
